"""`vanilla demo`: batches of requests, the page for gradio_client, and the page in a real browser."""

import asyncio
import json
import re
import socket
import threading
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from helpers import free_port, make_tiny, make_tokenizer

from modeling_vanilla.demo import batcher as batching
from modeling_vanilla.demo.batcher import Batcher
from modeling_vanilla.inference import translate_nbest
from modeling_vanilla.training.tokenizer import train_tokenizer

SENTENCES = ["a small house", "the dog runs across the green meadow", "the dog runs"]


@pytest.fixture(scope="module")
def tiny():
    return make_tiny(), make_tokenizer(SENTENCES)


# Requests


def test_what_waits_is_translated_together(tiny, monkeypatch):
    """While the first request is translated, five more come: their settings make them two batches."""
    batches, rest = [], threading.Event()

    def recorded(model, tokenizer, texts, nbest, **settings):
        batches.append(texts)
        assert rest.wait(60)
        return translate_nbest(model, tokenizer, texts, nbest, **settings)

    monkeypatch.setattr(batching, "translate_nbest", recorded)
    gathered = Batcher(*tiny, threading.Lock())

    async def ask():
        tasks = [asyncio.create_task(gathered.translate("the dog", 2, 0.6, 60))]
        while not batches:
            await asyncio.sleep(0.01)
        waiting = [*((text, 2, 0.6) for text in SENTENCES), ("a small dog", 1, 0.6), ("a dog", 2, 0.6)]
        tasks += [asyncio.create_task(gathered.translate(*request, 60)) for request in waiting]
        await asyncio.sleep(0.1)
        rest.set()
        return waiting, await asyncio.gather(*tasks)

    waiting, answers = asyncio.run(ask())
    assert batches == [["the dog"], [*SENTENCES, "a dog"], ["a small dog"]]
    for (text, beams, penalty), hypotheses in zip(waiting, answers[1:], strict=True):
        (expected,) = translate_nbest(*tiny, [text], beams, num_beams=beams, length_penalty=penalty)
        assert [best.text for best in hypotheses] == [best.text for best in expected]
        assert [best.score for best in hypotheses] == pytest.approx([best.score for best in expected], abs=1e-4)


def test_a_text_that_cannot_be_translated_fails_alone(make_model):
    tokenizer, lock = train_tokenizer(SENTENCES * 5, vocab_size=400, tags=[">>de<<"]), threading.Lock()
    gathered = Batcher(make_model(vocab_size=len(tokenizer)), tokenizer, lock)

    async def ask():
        with lock:
            texts = ("a dog", ">>xx<< a dog")
            tasks = [asyncio.create_task(gathered.translate(text, 2, 0.6, 60)) for text in texts]
            await asyncio.sleep(0.1)
        return await asyncio.gather(*tasks, return_exceptions=True)

    good, bad = asyncio.run(ask())
    assert len(good) == 2 and "its tags are: >>de<<" in str(bad)


@pytest.fixture
def endless(monkeypatch, request):
    """Let a model translate for hours; its steps so far."""

    def endless(model) -> list:
        monkeypatch.setattr(model.generation_config, "max_extra_tokens", 10**6)
        for config in (model.config, model.generation_config):
            monkeypatch.setattr(config, "eos_token_id", None)
        steps = []
        hook = model.register_forward_pre_hook(lambda *_: steps.append(1) or time.sleep(0.01))
        request.addfinalizer(hook.remove)
        return steps

    return endless


@pytest.mark.parametrize(
    ("seconds", "is_there", "error"), [(0.5, True, TimeoutError), (60, False, ConnectionAbortedError)]
)
def test_a_request_that_is_given_up_stops_the_model(tiny, endless, monkeypatch, seconds, is_there, error):
    monkeypatch.setattr(batching, "ABSENCE", 0)
    model, tokenizer = make_tiny(), tiny[1]
    steps = endless(model)
    gathered = Batcher(model, tokenizer, threading.Lock())
    with pytest.raises(error):
        asyncio.run(gathered.translate("a small house", 1, 0.6, seconds, lambda: is_there))
    with gathered.lock:  # free again as soon as the model has stopped
        before = len(steps)
        time.sleep(0.1)
        assert len(steps) == before > 1


# The page


@pytest.fixture(scope="module")
def page(tiny):
    """The address of a page, served by this process; and the hosts other than this machine that it has asked for."""
    pytest.importorskip("gradio")
    asked, resolve = [], socket.getaddrinfo

    def watched(host, *arguments, **named):
        asked.append(host)
        return resolve(host, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", watched)
        from modeling_vanilla.demo.page import build_page, launch

        built = build_page(*tiny, examples=SENTENCES[:2], max_characters=300, max_seconds=60)
        yield launch(built, "127.0.0.1", free_port()), asked
        built.close()


def post(page, name: str, data, **headers: str) -> str:
    """Call an endpoint of the page; the address of its answer."""
    address = f"{page[0]}gradio_api/call/{name}"
    headers = {"Content-Type": "application/json", **headers}
    with urlopen(Request(address, json.dumps({"data": data}).encode(), headers)) as reply:
        return f"{address}/{json.load(reply)['event_id']}"


@pytest.mark.slow
def test_the_page_translates_as_the_package_does(page, tiny, monkeypatch):
    from gradio_client import Client
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # the client, not the page, would ask the Hub
    client = Client(page[0], verbose=False)
    best, table = client.predict(SENTENCES[1], 3, 0.9, api_name="/translate")
    (expected,) = translate_nbest(*tiny, [SENTENCES[1]], 3, num_beams=3, length_penalty=0.9)
    assert best == expected[0].text
    assert table["headers"] == ["score", "translation"]
    assert [text for _, text in table["data"]] == [hypothesis.text for hypothesis in expected]
    scores = [hypothesis.score for hypothesis in expected]
    assert [score for score, _ in table["data"]] == pytest.approx(scores, abs=1e-3)
    lines, _ = client.predict("\n".join(SENTENCES), 4, 0.6, api_name="/translate")
    assert lines.split("\n") == [best.text for (best,) in translate_nbest(*tiny, SENTENCES, 1)]
    picture = client.predict("<b>a</b> dog", best, api_name="/attention")
    assert picture.startswith("<iframe srcdoc=") and "<b>" not in picture
    assert set(page[1]) <= {"127.0.0.1", "localhost"}


MALFORMED = [
    *(("translate", (text, 4, 0.6), "Type a text first.") for text in (" \n", None)),
    ("translate", ("a" * 301, 4, 0.6), "The text has 301 characters, and at most 300 are translated at once."),
    ("translate", ("a", 99, 0.6), "99.* maximum value 8"),
    ("translate", ("a",), "needed: 3, got: 1"),
    ("translate", ("a\ud800", 2, 0.6), "surrogate pair"),
    ("attention", ("a " * 140, "b"), "text: 1[0-9]+ tokens are too many for a picture, at most 128"),
    ("nothing", ("a",), None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("endpoint", "inputs", "message"), MALFORMED)
def test_a_malformed_call_is_a_message_and_at_most_one_line_in_the_log(page, capfd, endpoint, inputs, message):
    if message is None:
        with pytest.raises(HTTPError, match="400"):
            post(page, endpoint, inputs)
    else:
        with urlopen(post(page, endpoint, inputs)) as reply:
            answer = reply.read().decode()
        assert "event: error" in answer and re.search(message, answer)
    assert capfd.readouterr().err.count("\n") <= 1


@pytest.mark.slow
def test_only_names_of_this_machine_are_answered(page):
    """Or a page from elsewhere, whose name has come to point to this machine (DNS rebinding), could read along."""
    for host in ("localhost:7860", "[::1]"):
        assert post(page, "translate", ("a", 1, 0.6), Host=host)
    with pytest.raises(HTTPError, match="400"):
        post(page, "translate", ("a", 1, 0.6), Host="evil.example")


@pytest.mark.slow
def test_nothing_is_translated_for_callers_who_have_gone(page, tiny, endless):
    steps = endless(tiny[0])
    answers = [post(page, "translate", ("a dog", 8, 0.6)) for _ in range(3)]
    with pytest.raises(TimeoutError):
        urlopen(answers[0], timeout=1).read()
    time.sleep(10)
    before = len(steps)
    time.sleep(0.5)
    assert len(steps) == before > 1


@pytest.mark.slow
def test_a_person_chooses_and_reads_on_a_dark_phone(page, browser, tiny):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.wait import WebDriverWait

    def find(selector: str, number: int = 0):
        wait = WebDriverWait(browser, 40)
        return wait.until(lambda _: browser.find_elements("css selector", selector)[number:])[0]

    size = {"width": 390, "height": 2000, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    preferred = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})
    browser.get(page[0])
    find("#examples label", 1).click()
    assert find("#examples .selected").text == SENTENCES[1]
    find("#text textarea").send_keys(Keys.ENTER)
    find("#attention iframe")
    hypotheses = translate_nbest(*tiny, [SENTENCES[1]], 4, num_beams=4)[0]
    assert find("#best textarea").get_attribute("value") == hypotheses[0].text
    assert find("#text textarea").get_attribute("value") == SENTENCES[1]
    scores = [str(round(hypothesis.score, 4)) for hypothesis in hypotheses]
    WebDriverWait(browser, 40).until(lambda _: all(score in find("#nbest").text for score in scores))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    browser.switch_to.frame(find("#attention iframe"))
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", background)[:3])) < 200
    assert browser.find_elements("css selector", "#lines line") and browser.find_elements("css selector", "#heat rect")
    browser.switch_to.default_content()
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    urls = [event["params"]["request"]["url"] for event in messages if event["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith((page[0], "data:", "about:")) for url in urls)
