"""`vanilla demo`: the page for clients of Gradio."""

import json
import math
import re
import socket
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from helpers import free_port, make_tiny, make_tokenizer

from modeling_vanilla import Translator

SENTENCES = ["a small house", "the dog runs across the green meadow", "the dog runs"]


@pytest.fixture(scope="module")
def tiny():
    return Translator(make_tiny(), make_tokenizer(SENTENCES))


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
        from modeling_vanilla.demo import build_page, launch

        built = build_page(tiny, examples=SENTENCES[:2])
        yield launch(built, "127.0.0.1", free_port()), asked
        built.close()


@pytest.mark.slow
def test_the_page_translates_as_the_package_does(page, tiny):
    """Each of several who ask at once."""
    client = pytest.importorskip("gradio_client").Client(page[0], verbose=False)
    calls = [("\n".join(SENTENCES), 4, 0.6), *((text, beams, 0.9) for beams in (3, 1) for text in SENTENCES)]
    jobs = [client.submit(*call, api_name="/translate") for call in calls]
    for job, (text, beams, penalty) in zip(jobs, calls, strict=True):
        best, table = job.result()
        (expected,) = tiny.nbest([text], beams, num_beams=beams, length_penalty=penalty)
        assert (best, table["headers"]) == (expected[0].text, ["score", "translation"])
        assert table["data"] == [[round(hypothesis.score, 4), hypothesis.text] for hypothesis in expected]
    picture = client.predict("<b>a</b> dog", "ein Hund", api_name="/attention")
    assert picture.startswith("<iframe srcdoc=") and "<b>" not in picture
    assert set(page[1]) <= {"127.0.0.1", "localhost"}


MALFORMED = [
    ("translate", ("a" * 1001, 4, 0.6), "A text has at most 1000 characters."),
    *(("translate", ("a", beams, 0.6), "num_beams must be a number from 1 to 8, ") for beams in (99, "2", None)),
    ("translate", ("a", 2, math.nan), "length_penalty must be a number from 0 to 2.0, "),
    ("translate", (["a"], 2, 0.6), "texts must be strings, "),
    ("attention", ("a", "\ud800"), "texts.* surrogate"),
    ("attention", ("a" * 1001, "b"), "A text has at most 1000 characters."),
]


def post(page, name: str, data, **headers: str) -> str:
    """Call an endpoint of the page; the address of its answer."""
    address = f"{page[0]}gradio_api/call/{name}"
    headers = {"Content-Type": "application/json", **headers}
    with urlopen(Request(address, json.dumps({"data": data}).encode(), headers)) as reply:
        return f"{address}/{json.load(reply)['event_id']}"


@pytest.mark.slow
@pytest.mark.parametrize(("endpoint", "inputs", "message"), MALFORMED)
def test_a_malformed_call_gets_a_message(page, endpoint, inputs, message):
    with urlopen(post(page, endpoint, inputs)) as reply:
        assert re.search(message, reply.read().decode())


@pytest.mark.slow
def test_only_names_of_this_machine_are_answered(page):
    """Or a page from elsewhere, whose name has come to point to this machine (DNS rebinding), could read along."""
    for host in ("localhost:7860", "[::1]"):
        assert post(page, "translate", ("a", 1, 0.6), Host=host)
    with pytest.raises(HTTPError, match="400"):
        post(page, "translate", ("a", 1, 0.6), Host="evil.example")
