"""Every endpoint: right answers, each wrong field, large bodies, and clients that leave.

A new endpoint is a row of `helpers.endpoints.ENDPOINTS`.
"""

import io
import json
import pathlib
import types

import pytest
from helpers import local_service, sound_pool
from helpers.endpoints import ENDPOINTS, LINES, changed, fields
from helpers.service_requests import ask, connected, wait_for

from keras_transformer.export.runtime import Generator, Translator
from keras_transformer.export.serving import app
from keras_transformer.export.serving.limits import Limits

SMALL = Limits(body_bytes=5000, sound_bytes=5000)
FIELDS = [*fields()]
PLACES = [(name, place) for name, endpoint in ENDPOINTS.items() for place in endpoint.tables]


@pytest.fixture(scope="module")
def running(folder, seeded_folder):
    pools = {"en-de": local_service.Pool(folder), "story": local_service.Pool(seeded_folder)}
    pools["whisper"] = sound_pool.SoundPool()
    with local_service.Running(pools, SMALL, io.StringIO()) as made:
        yield made


@pytest.fixture(scope="module")
def expected(folder, seeded_folder):
    results = Generator(seeded_folder).n_best(LINES, 5)
    return {
        "en-de": Translator(folder).translate(LINES),
        "story": [result.full_text.removeprefix(result.prompt_text) for result in results],
        "whisper": ["No matter. Try again."],
    }


def error_of(path, answer):
    """Returns the reason of an error in the format of its protocol."""
    error = json.loads(answer)["error"]
    return error["message"] if path.startswith("/v1/") else error


def right(name):
    """Returns path, body and headers of the right request of an endpoint."""
    return ENDPOINTS[name].encode(ENDPOINTS[name].path, ENDPOINTS[name].body)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_a_right_request_gets_the_texts_of_the_runtime(running, expected, name):
    status, _, answer = ask(running, *right(name))
    assert status == 200, answer
    assert ENDPOINTS[name].texts(answer) == expected[ENDPOINTS[name].model]


@pytest.mark.parametrize("name, place, field", FIELDS, ids=lambda part: getattr(part, "name", None))
def test_each_wrong_field_is_named(running, name, place, field):
    message = field.name if field.option else f"{field.name} must be "
    refused = [x for x in ENDPOINTS[name].wrong if field.option or not field.kind.fits(x)]
    cases = [(value, message) for value in refused[:1]]
    cases += [(None, f"{field.name} is missing: it must be {field.kind.words}")] * field.needed
    for value, message in cases:
        request = changed(name, place, field.name, value)
        status, _, answer = ask(running, *request)
        assert (status, message in error_of(request[0], answer)) == (400, True), answer


@pytest.mark.parametrize("name, place", PLACES)
def test_unknown_fields_are_refused_with_the_nearest_name(running, name, place):
    known = max((field.name for field in ENDPOINTS[name].tables[place]), key=len)
    request = changed(name, place, f"{known}s", 7)
    status, _, answer = ask(running, *request)
    message = f"does not take {known}s. Did you mean {known}?"
    assert status == 400 and message in error_of(request[0], answer)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_large_bodies_and_other_encodings_are_refused(running, name):
    path, body, headers = right(name)
    status, _, answer = ask(running, path, b"x" * 6000, headers)
    assert status == 413 and "may have 5000 bytes" in error_of(path, answer)
    status, _, answer = ask(running, path, body, {**headers, "Content-Encoding": "gzip"})
    assert status == 415 and "Send it as it is" in error_of(path, answer)


def sent(running, name):
    """Sends the right request of an endpoint, and leaves at the end of the block."""
    path, body, headers = right(name)
    rows = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{rows}\r\n"
    return connected(running, head.encode() + body)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_the_requests_of_clients_that_leave_end(running, name):
    """One is computed, and another waits in the queue."""
    model = ENDPOINTS[name].model
    pool, queue = running.pools[model], running.models.get(model).queue
    begun, batches = len(running.rows()), len(pool.batches)
    running._loop.call_soon_threadsafe(pool.gate.clear)
    with sent(running, name):
        wait_for(lambda: len(pool.batches) > batches)
        with sent(running, name):
            wait_for(lambda: queue.waiting > 0)
        wait_for(lambda: queue.waiting == 0)
    wait_for(lambda: running.metric("open_requests") == 0)
    running._loop.call_soon_threadsafe(pool.gate.set)
    wait_for(lambda: [row["status"] for row in running.rows()[begun:]].count(499) == 2)
    assert {row["model"] for row in running.rows()[begun:] if row["status"] == 499} == {model}


def test_the_example_of_the_architecture_is_an_endpoint(folder, start, monkeypatch):
    page = pathlib.Path(__file__).parents[3] / "docs" / "architecture.md"
    best = types.ModuleType("best")
    exec(page.read_text("utf-8").partition("```python\n")[2].partition("```")[0], best.__dict__)
    monkeypatch.setattr(app, "PROTOCOLS", (best,))
    made, body = start(), {"model": "en-de", "text": LINES, "count": 2, "most_tokens": 3}
    status, _, answer = ask(made, "/best", body)
    expected = [[*result.texts[:2]] for result in Translator(folder).n_best(LINES, max_length=3)]
    assert (status, json.loads(answer)["texts"]) == (200, expected)
    status, _, answer = ask(made, "/best", body | {"count": 10})
    assert status == 400 and "count must be an integer from 1 to 9, got 10" in answer.decode()
