"""Requests that would cost far more than they may: memory, other clients, and statuses."""

import concurrent.futures
import contextlib
import functools
import json
import sys
import time

import pytest
from helpers import exports
from helpers.command_process import Process
from helpers.service_requests import wait_for

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


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if "terms" in name else [pytest.mark.full]) for name in ATTACKS],
)
def test_an_attack_costs_others_little(service, name):
    path, *rest, wanted = ATTACKS[name]
    attack = functools.partial(service.send, path, *rest)
    if path == "infer":
        attack = functools.partial(service.infer, rest[0], **rest[1])
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        attackers = [threads.submit(attack) for _ in range(8)]
        times = [line_seconds(service)]
        while not all(one.done() for one in attackers):
            times.append(line_seconds(service))
            time.sleep(0.05)
        found = [one.result() for one in attackers]
    assert {status for status, _ in found} == {wanted}, found[0]
    assert max(times) < 8 and service.peak() < 1000, (max(times), service.peak())
    assert service.process.poll() is None


def line_seconds(service, client="203.0.113.9"):
    """Returns the time of a short line of a client, which must be answered."""
    start = time.monotonic()
    answer = service.send("/lines/en-de", b"a dog\n", {"X-Forwarded-For": client})
    assert answer[0] == 200, answer
    return time.monotonic() - start


@contextlib.contextmanager
def unread(service, clients, path, body, waiting):
    """Sends requests of clients whose answers are not read, until this many lines wait."""
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.enter_context(contextlib.closing(service.begin(client, path, body)))
        wait_for(lambda: service.metric("waiting_lines") >= waiting)
        yield


@pytest.mark.full
@pytest.mark.parametrize("greedy, each", [(1, 20), (8, 4)])
def test_long_texts_of_others_do_not_shut_out_a_short_line(service, greedy, each):
    """The texts have 3,000 lines each. They would fill the queue for minutes."""
    clients = [f"198.51.100.{number}" for number in range(greedy)] * each
    text = translate(q=f"{WORDS * 7}\n" * 3_000)
    with unread(service, clients, "/translate", text, 500):
        times = [line_seconds(service) for _ in range(5)]
        status, body = service.send(
            "/lines/en-de", b"a\n" * 64, {"X-Forwarded-For": "198.51.100.0"}
        )
        assert greedy > 1 or status == 429 and b"of them of this client, whose share is" in body
    assert max(times) < 4, times


def test_streams_of_a_client_leave_room_for_another_one(service):
    """Sixty streams of lines are never read, and send for ever."""
    with unread(service, ["198.51.100.7"] * 60, "/lines/en-de", b"a dog\n" * 9_000, 200):
        times = [line_seconds(service, f"203.0.113.{n}") for n in range(5)]
    assert max(times) < 4, times


def test_a_long_line_is_refused_by_its_characters(service):
    status, body = service.infer([WORDS * 500_000, "a dog"])
    first, second = json.loads(body)["outputs"][0]["data"][:2]
    assert status == 200 and second
    assert not first and b"characters, where this artefact takes at most" in body
    status, body = service.infer([f"a{' ' * 1_000_000}dog"])
    assert status == 200 and b"characters, where" not in body


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
    parts = [('name="source"', "en"), ('name="target"', "de"), *more]
    rows = "".join(f"--x\r\nContent-Disposition: form-data; {p}\r\n\r\n{v}\r\n" for p, v in parts)
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    found, body = service.send("/translate", f"{rows}--x--\r\n".encode(), headers)
    assert found == status and message in body.decode()


@pytest.mark.anyio
async def test_a_service_does_not_start_inside_an_event_loop():
    with pytest.raises(RuntimeError, match="as in a notebook. Start it in a separate process"):
        serve({"en-de": ServedArtefact("nowhere")}, port=0)
