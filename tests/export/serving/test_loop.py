"""The event loop: no request occupies it for long, so other clients do not wait."""

import asyncio
import gc
import json
import threading
import time
import urllib.parse
import weakref

import pytest
from helpers import exports, local_service, service_requests

import keras_transformer as kt
from keras_transformer.export.artefact.options import SEED_OPTION
from keras_transformer.export.serving.engine import BatchResult
from keras_transformer.export.serving.limits import THREAD_BYTES, Limits, on_thread_if_large
from keras_transformer.export.serving.protocols import libretranslate
from keras_transformer.export.serving.refusals import Invalid
from keras_transformer.export.serving.request_options import checked_options
from keras_transformer.search import Sampling

MOST_SECONDS = 0.05  # of processor time
SEARCH = kt.BeamSearch(5, 0.6, constraints=[kt.Terms()])
LARGEST = Limits().body_bytes - 1000
LARGEST_ON_LOOP = THREAD_BYTES - 100  # about: larger requests are read on threads
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class Canned(local_service.Pool):
    """Gives each line the results of one line, without computing them."""

    async def open(self):
        description = await super().open()
        self.one = (await super().run_batch(["a man 's hat , red ."])).results[0]
        return description

    async def run_batch(self, items, options=None):
        await asyncio.sleep(0)
        lengths = [7] * len(items)
        return BatchResult([self.one] * len(items), lengths, 0.0, self.in_use, "1")


@pytest.fixture(scope="module")
def running():
    pools = {
        "en-de": Canned(exports.artefact(SEARCH)),
        "story": Canned(exports.artefact(Sampling(0.9, 20, 0.95), "generate", layout="steps")),
    }
    made = local_service.Running(pools, Limits(read_seconds=120))
    gc.collect()
    gc.freeze()  # as the service does: a collection would look at the objects of all tests
    yield made
    gc.unfreeze()
    made.stop()


@pytest.fixture
def calls(running, monkeypatch):
    """The processor seconds of each call of the event loop, with what it did."""
    found, run = [], asyncio.events.Handle._run

    def timed(handle):
        begun = time.thread_time()
        try:
            run(handle)
        finally:
            if threading.current_thread() is running._thread:
                found.append((time.thread_time() - begun, repr(handle)[:300]))

    monkeypatch.setattr(asyncio.events.Handle, "_run", timed)
    return found


def fill(unit, size, between=""):
    return between.join([unit] * (size // (len(unit) + len(between))))


def lines(size, most=10_000):
    """Returns lines whose JSON has this many bytes."""
    count = min(most, size // 5)
    return ["a" * max(1, size // count - 4)] * count


def v2(data, **parameters):
    entry = {"name": "text", "datatype": "BYTES", "shape": [len(data)], "data": data}
    return json.dumps({"inputs": [entry], "parameters": parameters}).encode()


def translate(text, **fields):
    return json.dumps({"q": text, "source": "en", "target": "de", **fields}).encode()


def complete(**fields):
    return json.dumps({"model": "story", "prompt": "a man", **fields}).encode()


def words(size):
    return " ".join(f"w{n}" for n in range(size // 7))


def glossary(size):
    return {f"w{n}": f"x{n}" for n in range(size // 18)}


def multipart(size):
    part = '--x\r\nContent-Disposition: form-data; name="q"\r\n\r\na\r\n'
    return (fill(part, min(size, 990 * len(part))) + "--x--\r\n").encode()


V2, TRANSLATE, COMPLETE = "/v2/models/en-de/infer", "/translate", "/v1/completions"
BODIES = {
    "v2 lines": (V2, JSON, lambda size: v2(lines(size))),
    "v2 empty lines": (V2, JSON, lambda size: v2([""] * min(10_000, size // 4))),
    "v2 a line": (V2, JSON, lambda size: v2([fill("a dog ", size)])),
    "v2 a word": (V2, JSON, lambda size: v2(["a" * size])),
    "v2 64 lines": (V2, JSON, lambda size: v2([fill("a dog ", size // 64)] * 64)),
    "v2 nested": (V2, JSON, lambda size: b"[" * size),
    "v2 objects": (V2, JSON, lambda size: v2([{}] * (size // 4))),
    "v2 terms": (V2, JSON, lambda size: v2(["a"] * (size // 20), terms=[["Hut"]] * (size // 20))),
    "v2 many terms": (V2, JSON, lambda size: v2(["a"], terms=["a"] * (size // 5))),
    "v2 a wrong number": (
        V2,
        JSON,
        lambda size: v2(["a"], max_length="many", terms=[[]] * (size // 4)),
    ),
    "v2 glossary": (V2, JSON, lambda size: v2([words(size // 2)], glossary=glossary(size // 2))),
    "v2 glossary of short lines": (
        V2,
        JSON,
        lambda size: v2(["w1 w2"] * min(10_000, size // 20), glossary=glossary(size // 2)),
    ),
    "text of lines": (TRANSLATE, JSON, lambda size: translate(fill("a", size // 3, "\n")[:20_000])),
    "sentences": (TRANSLATE, JSON, lambda size: translate(fill("A dog runs. ", min(size, 60_000)))),
    "texts": (TRANSLATE, JSON, lambda size: translate(lines(size), alternatives=9)),
    "a text": (TRANSLATE, JSON, lambda size: translate(fill("a dog ", size))),
    "conversions": (TRANSLATE, JSON, lambda size: translate(fill("%s ", size))),
    "braces": (TRANSLATE, JSON, lambda size: translate(fill("{a}", size))),
    "<": (TRANSLATE, JSON, lambda size: translate(fill("<", size), format="html")),
    ">": (TRANSLATE, JSON, lambda size: translate(fill(">", size), format="html")),
    "&": (TRANSLATE, JSON, lambda size: translate(fill("&amp;", size), format="html")),
    "tags": (TRANSLATE, JSON, lambda size: translate(fill("<b>a ", size), format="html")),
    "paragraphs": (TRANSLATE, JSON, lambda size: translate(fill("<p>a", size), format="html")),
    "attributes": (
        TRANSLATE,
        JSON,
        lambda size: translate(f"<p {fill('a=b ', size)}>a", format="html"),
    ),
    "a form": (TRANSLATE, FORM, lambda size: f"q={fill('a+', size)}&source=en&target=de".encode()),
    "escapes": (TRANSLATE, FORM, lambda size: f"q={fill('%61', size)}&source=en&t=de".encode()),
    "fields": (TRANSLATE, FORM, lambda size: fill("a=b", size, "&").encode()),
    "multipart": (TRANSLATE, "multipart/form-data; boundary=x", multipart),
    "dashes": (TRANSLATE, "multipart/form-data; boundary=x", lambda size: b"\r\n--" * (size // 4)),
    "prompts": (COMPLETE, JSON, lambda size: complete(prompt=lines(size))),
    "a prompt": (COMPLETE, JSON, lambda size: complete(prompt=fill("a dog ", size))),
    "stops": (COMPLETE, JSON, lambda size: complete(prompt=lines(size // 2), stop=["z" * 900] * 4)),
    "a stop": (COMPLETE, JSON, lambda size: complete(stop="a" * size, stream=True)),
    "lines": ("/lines/en-de", "", lambda size: ("a\n" * min(10_000, size // 2)).encode()),
    "json lines": (
        "/lines/en-de?format=json",
        "",
        lambda size: ("a\n" * min(10_000, size // 2)).encode(),
    ),
    "a line": ("/lines/en-de", "", lambda size: b"a dog " * (size // 6)),
    "a query": (
        f"/lines/en-de?glossary={urllib.parse.quote(json.dumps(glossary(20_000)))}",
        "",
        lambda size: b"w1 w2\n" * 700,
    ),
    "detect": ("/detect", JSON, lambda size: b"x" * size),
    "sound": (
        "/v1/audio/transcriptions",
        "multipart/form-data; boundary=x",
        lambda size: multipart(size),
    ),
}


def test_a_refusal_keeps_nothing_of_its_request():
    """Otherwise the event loop would free it."""
    kept = []

    class Fields(dict):
        """Unlike a dict, it can have weak references."""

    def read():
        fields = Fields()
        kept.append(weakref.ref(fields))
        checked_options("en-de", {"seed": SEED_OPTION}, {"seed": "x"}, None)

    with pytest.raises(Invalid, match="seed must be an integer"):
        asyncio.run(on_thread_if_large(THREAD_BYTES, read))
    assert kept[0]() is None


@pytest.mark.parametrize(("seconds", "answer"), [("9", 200), ("0", 504)])
def test_the_event_loop_does_not_free_a_request(running, monkeypatch, seconds, answer):
    freed = []

    class Noticed(libretranslate.Document):
        def __del__(self):
            freed.append(threading.current_thread())

    monkeypatch.setattr(libretranslate, "Document", Noticed)
    headers = {"Content-Type": JSON, "Request-Timeout": seconds}
    body = translate(["a dog"] * 300)
    assert running.request("POST", TRANSLATE, body, headers)[0] == answer
    service_requests.wait_for(lambda: len(freed) >= 300)
    assert running._thread not in freed


def slow(calls):
    """Returns the slow calls, slowest first."""
    return sorted((call for call in calls if call[0] > MOST_SECONDS), reverse=True)[:3]


@pytest.mark.full("text of lines-60000", "texts-60000")
@pytest.mark.parametrize(
    "size", [LARGEST_ON_LOOP, 60_000, pytest.param(LARGEST, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("name", BODIES)
def test_no_request_occupies_the_event_loop(running, calls, name, size):
    path, kind, body = BODIES[name]
    size = min(size, 500_000) if path == TRANSLATE else size  # threads need minutes for more
    status = running.request("POST", path, body(size), {"Content-Type": kind} if kind else {})[0]
    assert status < 500 and calls
    assert not slow(calls), (status, slow(calls))
