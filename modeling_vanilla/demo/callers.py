"""Between the page and its callers: who is still there, and one line in the log for a call that fails."""

import logging

import gradio as gr
from starlette.datastructures import QueryParams
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import one_line

logger = logging.getLogger(__name__)


class Page(gr.Blocks):
    """A page of Gradio.

    Attributes:
        sessions: the caller of each open request, by session or call; who waits for an answer keeps a request open.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.sessions: list[str] = []

    async def process_api(self, *arguments, **named) -> dict:
        """As in Gradio, which would print the traceback of an error; a ValueError or OSError is the caller's matter."""
        try:
            return await super().process_api(*arguments, **named)
        except Exception as error:
            if not isinstance(error, gr.Error | ValueError | OSError):
                logger.error("a call failed: %s", one_line(error))
            raise gr.Error(one_line(error), print_exception=False) from error


class Callers:
    """ASGI middleware that keeps Page.sessions, and logs what Gradio raises for a malformed call in one line."""

    def __init__(self, app: ASGIApp, sessions: list[str]):
        self.app, self.sessions = app, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        # The streams of answers are queue/data?session_hash=SESSION and call/NAME/CALL.
        session = QueryParams(scope.get("query_string", "")).get("session_hash", path.rpartition("/")[2])
        self.sessions.append(session)
        try:
            await self.app(scope, receive, send)
        except Exception as error:
            logger.error("%s failed: %s", path, one_line(error))
            try:
                await PlainTextResponse("This call is malformed.", 400)(scope, receive, send)
            except RuntimeError:  # the answer has begun: end it
                await send({"type": "http.response.body"})
        finally:
            self.sessions.remove(session)
