"""Requests that would cost far more than they may: memory, other clients, and statuses."""

import asyncio
import concurrent.futures
import contextlib
import json
import sys
import time

import pytest
from helpers import exports
from helpers.command_process import Process

import keras_transformer as kt
from keras_transformer.export.serving import ServedArtefact, serve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SEARCH = kt.BeamSearch(5, 0.6, constraints=[kt.Terms()])


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    proxies = "--trusted-proxies", "127.0.0.1"
    aside, model = tmp_path_factory.mktemp("service"), "threads=1,workers=1"
    made = Process(exports.artefact(SEARCH), aside, *proxies, model=model)
    yield made
    made.kill()


def translate(**fields):
    return json.dumps({"source": "en", "target": "de", **fields}).encode()


WORDS = "a man 's hat "
ATTACKS = {
    "10,000 terms": ("infer", ["one"], {"terms": [f"eins zwei {n}" for n in range(10_000)]}, 400),
    "100 long terms": ("infer", ["one"], {"terms": ["eins " * 100] * 100}, 400),
    "a glossary of 10,000 entries for one line": (
        "infer",
        [" ".join(f"w{n}" for n in range(10_000))],
        {"glossary": {f"w{n}": f"x{n}" for n in range(10_000)}},
        400,
    ),
    "a line of 7 MB": ("infer", [WORDS * 500_000], {}, 200),
    "quotation marks": ("/translate", translate(q="\u00aba. " * 100_000), 413),
    "tags": ("/translate", translate(q="<span>a " * 100_000, format="html"), 413),
    "a text of 100 KB": ("/translate", translate(q=WORDS * 8_000), 400),
    "conversions": ("/translate", translate(q="%s " * 40_000), 200),
    "brackets": ("/translate", b'{"q": ' + b"[" * 1_000_000, 400),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if "terms" in name else [pytest.mark.full]) for name in ATTACKS],
)
def test_an_attack_costs_others_little(service, name):
    kind, *rest, wanted = ATTACKS[name]
    attack = service.infer if kind == "infer" else service.send
    arguments = (rest[0],) if kind == "infer" else (kind, *rest)
    options = rest[1] if kind == "infer" else {}
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        attackers = [threads.submit(attack, *arguments, **options) for _ in range(8)]
        longest = 0.0
        while not all(one.done() for one in attackers):
            start = time.monotonic()
            assert service.send("/lines/en-de", b"a dog\n")[0] == 200
            longest = max(longest, time.monotonic() - start)
            time.sleep(0.05)
        found = [one.result() for one in attackers]
    assert {status for status, _ in found} == {wanted}, found[0]
    assert longest < 8 and service.peak() < 1000, (longest, service.peak())
    assert service.process.poll() is None


def line_seconds(service, client):
    """Returns the time of a short line of a client, which must be answered."""
    start = time.monotonic()
    answer = service.send("/lines/en-de", b"a dog\n", {"X-Forwarded-For": client})
    assert answer[0] == 200, answer
    return time.monotonic() - start


@pytest.mark.full
@pytest.mark.parametrize("greedy, each", [(1, 20), (8, 4)])
def test_long_texts_of_others_do_not_shut_out_a_short_line(service, greedy, each):
    """The texts have 3,000 lines each. They would fill the queue for minutes."""
    text = translate(q=f"{WORDS * 7}\n" * 3_000)
    with contextlib.ExitStack() as stack:
        for number in range(greedy):
            for _ in range(each):
                opened = service.begin(f"198.51.100.{number}", "/translate", text)
                stack.enter_context(contextlib.closing(opened))
        end = time.monotonic() + 60
        while service.metric("waiting_lines") < 500:
            assert time.monotonic() < end
            time.sleep(0.1)
        times = [line_seconds(service, "203.0.113.9") for _ in range(5)]
        status, body = service.send(
            "/lines/en-de", b"a\n" * 64, {"X-Forwarded-For": "198.51.100.0"}
        )
        assert greedy > 1 or status == 429 and b"of them of this client, whose share is" in body
    assert max(times) < 4, times


def test_streams_of_a_client_leave_room_for_another_one(service):
    """Sixty streams of lines are never read, and send for ever."""
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            opened = service.begin("198.51.100.7", "/lines/en-de", b"a dog\n" * 9_000)
            stack.enter_context(contextlib.closing(opened))
        end = time.monotonic() + 60
        while service.metric("waiting_lines") < 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        times = [line_seconds(service, f"203.0.113.{n}") for n in range(5)]
    assert max(times) < 4, times


def test_a_long_line_is_refused_by_its_characters(service):
    status, body = service.infer([WORDS * 500_000, "a dog"])
    first, second = json.loads(body)["outputs"][0]["data"][:2]
    assert status == 200 and second
    assert not first and b"characters, where this artefact takes at most" in body
    status, body = service.infer([f"a{' ' * 1_000_000}dog"])
    assert status == 200 and b"characters, where" not in body


def form(*parts):
    rows = "".join(f"--x\r\nContent-Disposition: form-data; {p}\r\n\r\n{v}\r\n" for p, v in parts)
    return f"{rows}--x--\r\n".encode(), {"Content-Type": "multipart/form-data; boundary=x"}


FIELDS = [('name="source"', "en"), ('name="target"', "de")]


@pytest.mark.parametrize(
    "more, status, message",
    [
        ([('name="q"', "a dog")], 200, "translatedText"),
        ([('name="q"', "a dog"), ('name="q"', "a man")], 200, "["),
        ([('name="q"', "a dog"), ('name="api_key"', "")], 200, "translatedText"),
        ([('name="q"; filename="a.txt"', "a dog")], 400, "has a file"),
        ([('name="q"; filename="a"', "a")] * 2, 400, "several files"),
        ([('name="q"', "a")] * 1001, 400, "may have 1000 fields"),
        ([('name="q"', "a dog"), ('name="max_lenght"', "3")], 400, "Did you mean max_length?"),
    ],
)
def test_a_form_of_a_page_is_answered(service, more, status, message):
    found, body = service.send("/translate", *form(*FIELDS, *more))
    assert found == status and message in body.decode()


def test_a_service_does_not_start_inside_an_event_loop():
    async def cell():
        return serve({"en-de": ServedArtefact("nowhere")}, port=0)

    with pytest.raises(RuntimeError, match="as in a notebook. Start it in a separate process"):
        asyncio.run(cell())
