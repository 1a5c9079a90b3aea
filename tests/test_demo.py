"""`vanilla demo`: batches of requests, the page for gradio_client, and the page in a real browser."""

import asyncio
import json
import re
import shutil
import socket
import threading
import time
from urllib.request import Request, urlopen

import pytest
from helpers import call, make_tiny, make_tokenizer, save_folder

from modeling_vanilla.demo import batcher as batching
from modeling_vanilla.demo.batcher import Batcher
from modeling_vanilla.inference import translate_nbest

SENTENCES = ["a small house", "the dog runs across the green meadow", "the dog runs"]


@pytest.fixture(scope="module")
def tiny():
    return make_tiny(), make_tokenizer(SENTENCES)


# Requests


def test_what_waits_is_translated_together(tiny, monkeypatch):
    """While the first request is translated, five more come: their settings make them two batches."""
    batches, first, rest = [], threading.Event(), threading.Event()

    def recorded(model, tokenizer, texts, nbest, **settings):
        batches.append(texts)
        first.set()
        assert rest.wait(60)
        return translate_nbest(model, tokenizer, texts, nbest, **settings)

    monkeypatch.setattr(batching, "translate_nbest", recorded)
    gathered = Batcher(*tiny, threading.Lock())

    async def ask():
        tasks = [asyncio.create_task(gathered.translate("the dog", 2, 0.6, 60))]
        while not first.is_set():
            await asyncio.sleep(0.01)
        waiting = [*((text, 2, 0.6) for text in SENTENCES), ("a small dog", 1, 0.6), ("a dog", 2, 0.6)]
        tasks += [asyncio.create_task(gathered.translate(*one, 60)) for one in waiting]
        await asyncio.sleep(0.1)
        rest.set()
        return waiting, await asyncio.gather(*tasks)

    waiting, answers = asyncio.run(ask())
    assert batches == [["the dog"], [*SENTENCES, "a dog"], ["a small dog"]]
    for (text, beams, penalty), found in zip(waiting, answers[1:], strict=True):
        (expected,) = translate_nbest(*tiny, [text], beams, num_beams=beams, length_penalty=penalty)
        assert [one.text for one in found] == [one.text for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)


def test_a_request_that_is_given_up_stops_the_model(tiny):
    model, tokenizer = make_tiny(), tiny[1]
    model.generation_config.max_extra_tokens = 10**6
    steps = []
    model.register_forward_pre_hook(lambda *_: steps.append(1) or time.sleep(0.01))
    model.config.eos_token_id = model.generation_config.eos_token_id = None  # it would go on for hours
    gathered = Batcher(model, tokenizer, threading.Lock())
    with pytest.raises(TimeoutError):
        asyncio.run(gathered.translate("a small house", 1, 0.6, 0.5))
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

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        built = build_page(*tiny, examples=SENTENCES[:2], max_characters=300, max_seconds=60)
        yield launch(built, "127.0.0.1", port), asked
        built.close()


@pytest.fixture(scope="module")
def client(page):
    from gradio_client import Client
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)  # the client, not the page, would ask the Hub
        return Client(page[0], verbose=False)


@pytest.mark.slow
def test_the_page_translates_as_the_package_does(page, client, tiny):
    best, table = client.predict(SENTENCES[1], 3, 0.9, api_name="/translate")
    (expected,) = translate_nbest(*tiny, [SENTENCES[1]], 3, num_beams=3, length_penalty=0.9)
    assert best == expected[0].text
    assert table["headers"] == ["score", "translation"]
    assert [text for _, text in table["data"]] == [one.text for one in expected]
    assert [score for score, _ in table["data"]] == pytest.approx([one.score for one in expected], abs=1e-3)
    picture = client.predict("<b>a</b> dog", best, api_name="/attention")
    assert picture.startswith("<iframe srcdoc=") and "<b>" not in picture
    assert set(page[1]) <= {"127.0.0.1", "localhost"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("endpoint", "inputs", "message"),
    [
        ("translate", (" \n", 4, 0.6), "Type a text first."),
        ("translate", (None, 4, 0.6), "Type a text first."),
        ("translate", (["a"], 4, 0.6), "Type a text first."),
        ("translate", ("a" * 301, 4, 0.6), "The text has 301 characters, and at most 300 are translated at once."),
        ("translate", ("a", 99, 0.6), "Beams must be from 1 to 8, not 99."),
        ("translate", ("a", None, 0.6), "Beams must be from 1 to 8, not None."),
        ("translate", ("a", 4, "b"), "Length penalty must be from 0 to 2, not 'b'."),
        ("attention", ("", "a"), "Type a text first."),
        ("attention", ("a " * 140, "b"), "text: 1[0-9]+ tokens are too many for a picture, at most 128"),
    ],
)
def test_wrong_input_is_a_message_and_no_trace(client, capfd, endpoint, inputs, message):
    with pytest.raises(Exception) as raised:
        client.predict(*inputs, api_name=f"/{endpoint}")
    assert re.fullmatch(message, str(raised.value))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("endpoint", "inputs"), [("translate", ("a\ud800", 2, 0.6)), ("attention", ("a", "\ud800"))])
def test_half_a_surrogate_pair_is_refused(page, endpoint, inputs):
    """JSON may hold it, though gradio_client sends none; a tokenizer would fail, and with it all of a batch."""
    address = f"{page[0]}gradio_api/call/{endpoint}"
    request = Request(address, json.dumps({"data": inputs}).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as reply:
        event = json.load(reply)["event_id"]
    with urlopen(f"{address}/{event}") as reply:
        assert b"event: error" in (answer := reply.read()) and b"surrogate pair" in answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "0"], "port: must be from 1 to 65535, not 0"),
        (["--max_seconds", "nan"], "max_seconds: must be above 0, not nan"),
        (["--examples", "none.txt"], "none.txt: cannot be read: No such file or directory"),
        (["--port", "TAKEN"], ".*TAKEN.*"),
    ],
)
def test_bad_options_are_one_line(tiny, tmp_path, options, message):
    from modeling_vanilla.cli.demo import main

    folder = save_folder(tmp_path, *tiny)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = call(main, folder, *(option.replace("TAKEN", port) for option in options))
    assert re.fullmatch(message.replace("TAKEN", port), done.error)


# The page in a browser


@pytest.fixture
def browser():
    selenium = pytest.importorskip("selenium.webdriver")
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("needs the programs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = programs[0]
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(programs[1]))
    yield driver
    driver.quit()


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 1500), (390, 2000)])
def test_a_person_types_clicks_and_reads(page, browser, tiny, tmp_path, width, height, theme):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    def find(selector: str):
        return WebDriverWait(browser, 40).until(lambda _: browser.find_elements(By.CSS_SELECTOR, selector))[0]

    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    preferred = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})
    browser.get(page[0])
    find("#text textarea").send_keys(SENTENCES[1])
    find("#translate").click()
    frame = find("#attention iframe")
    found = translate_nbest(*tiny, [SENTENCES[1]], 4, num_beams=4)[0]
    assert find("#best textarea").get_attribute("value") == found[0].text
    scores = [str(round(one.score, 4)) for one in found]
    WebDriverWait(browser, 40).until(lambda _: all(score in find("#nbest").text for score in scores))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.switch_to.frame(frame)
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (theme == "dark")
    assert browser.find_elements(By.CSS_SELECTOR, "#lines line") and browser.find_elements(
        By.CSS_SELECTOR, "#heat rect"
    )
    browser.switch_to.default_content()
    (tmp_path / "page.png").write_bytes(browser.get_screenshot_as_png())
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    urls = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith((page[0], "data:", "about:")) for url in urls)
