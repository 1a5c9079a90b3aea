"""Requests of many people, translated together: those that arrive while the model is busy are its next batch."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inference import translate_nbest
from ..inference.translation import Hypothesis

MAX_BATCH = 64  # requests
ABSENCE = 5  # seconds: a caller of Gradio first leaves a request, and then comes for its answer


@dataclass(frozen=True, eq=False)
class Request:
    """A text that waits for its translations, and how to search for them."""

    text: str
    settings: tuple[int, float]  # beams and length penalty
    answer: Future[list[Hypothesis]] = field(default_factory=Future)


class Batcher:
    """Translates the requests of many callers, one batch after the other.

    Each request has a thread. The first to get the lock translates the request that has waited longest and all others
    with its settings, up to MAX_BATCH; whose request was answered by another has nothing left to do. A request that is
    given up, because its time is over or its caller has gone, is left out; once nobody waits for any of a batch, the
    model stops in the middle of it.

    Args:
        lock: held while the model computes.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lock: threading.Lock):
        self.model, self.tokenizer, self.lock = model, tokenizer, lock
        self.waiting: list[Request] = []

    async def translate(
        self,
        text: str,
        beams: int,
        length_penalty: float,
        seconds: float,
        is_there: Callable[[], bool] = lambda: True,
    ) -> list[Hypothesis]:
        """The n best translations of a text, n being the number of beams.

        Args:
            is_there: whether the caller still waits; asked every second.

        Raises:
            TimeoutError: if there is none within so many seconds.
            ConnectionAbortedError: if the caller has been away for ABSENCE seconds.
            ValueError: as model.generate raises it for settings that mean nothing, and for a text with an unknown tag.
        """
        request = Request(text, (beams, length_penalty))
        self.waiting.append(request)
        threading.Thread(target=self._translate_batch, name="translation", daemon=True).start()
        answer = asyncio.wrap_future(request.answer)
        absent = 0
        try:
            async with asyncio.timeout(seconds):
                while not answer.done():
                    await asyncio.wait([answer], timeout=1)
                    absent = 0 if is_there() else absent + 1
                    if absent > ABSENCE:
                        raise ConnectionAbortedError("The caller has gone.")
            return answer.result()
        except TimeoutError:
            advice = "try a shorter text, fewer beams, or later"
            raise TimeoutError(f"There is no translation after {seconds:g} seconds: {advice}.") from None
        finally:
            answer.cancel()
            self.waiting.remove(request)

    def _translate_batch(self) -> None:
        """Translate the next batch."""
        with self.lock:
            waiting = [request for request in list(self.waiting) if not request.answer.done()]
            batch = [request for request in waiting if request.settings == waiting[0].settings][:MAX_BATCH]
            if batch:
                self._answer(batch)

    def _answer(self, batch: list[Request]) -> None:
        """Give each request of a batch that is still awaited its answer, be it an error.

        If something is wrong with a text, each is translated by itself, as it is no error of those beside it.
        """
        beams, length_penalty = batch[0].settings
        texts = [request.text for request in batch]
        try:
            with _while_awaited(self.model, batch):
                nbest = translate_nbest(
                    self.model, self.tokenizer, texts, beams, num_beams=beams, length_penalty=length_penalty
                )
        except Exception as error:
            if isinstance(error, ValueError) and len(batch) > 1:
                for request in batch:
                    self._answer([request])
                return
            for request in filter(_claim, batch):
                request.answer.set_exception(error)
            return
        for request, hypotheses in zip(batch, nbest, strict=True):
            if _claim(request):
                request.answer.set_result(hypotheses)


def _claim(request: Request) -> bool:
    """Whether somebody still waits for the answer of a request; if so, it can no longer be given up."""
    return request.answer.set_running_or_notify_cancel()


@contextmanager
def _while_awaited(model: PreTrainedModel, batch: list[Request]) -> Iterator[None]:
    """Let the model stop with InterruptedError before its next step when nobody waits for the batch any more."""

    def check(*_) -> None:
        if all(request.answer.cancelled() for request in batch):
            raise InterruptedError("nobody waits for this batch any more")

    hook = model.register_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()
