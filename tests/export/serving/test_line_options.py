"""Options by line, and glossaries: every protocol returns the texts of `Translator`."""

import asyncio
import concurrent.futures
import functools
import json
import time
import types
import urllib.parse

import pytest
from helpers import exports, local_service

import keras_transformer as kt
from keras_transformer.export.artefact.options import Option
from keras_transformer.export.runtime import Translator
from keras_transformer.export.serving.protocols.lines import _Lines
from keras_transformer.export.serving.refusals import Busy
from keras_transformer.export.serving.request_options import checked_options

SEARCH = kt.BeamSearch(5, 0.6, constraints=[kt.Terms()])
LINES = ["a man 's hat , red .", "the Dog  runs", "two words"]
TERMS = [["hat", "red"], [], ["dog"]]
GLOSSARY = {"the dog": "ein mann", "red": "dog"}


@pytest.fixture(scope="module")
def artefact():
    return exports.artefact(SEARCH)


@pytest.fixture(scope="module")
def door(artefact):
    pool = local_service.Pool(artefact)
    made = local_service.Running({"en-de": pool})
    made.batches = pool.batches
    yield made
    made.stop()


@pytest.fixture(scope="module")
def translator(artefact):
    return Translator(artefact, threads=1)


def infer(door, lines=LINES, **parameters):
    entry = {"name": "text", "datatype": "BYTES", "shape": [len(lines)], "data": lines}
    fields = {"inputs": [entry], "outputs": [{"name": "text"}], "parameters": parameters}
    status, _, body = door.request("POST", "/v2/models/en-de/infer", json.dumps(fields))
    answer = json.loads(body)
    return answer["outputs"][0]["data"] if status == 200 else answer["error"]


def test_http_takes_a_value_for_each_line(door, translator):
    assert infer(door, terms=TERMS) == translator.translate(LINES, terms=TERMS)
    assert infer(door, max_length=[3, 5, 2]) == translator.translate(LINES, max_length=[3, 5, 2])
    given = {"terms": ["two"], "glossary": GLOSSARY}
    assert infer(door, **given) == translator.translate(
        LINES, terms=["two"], glossary=kt.Glossary(GLOSSARY)
    )


def test_options_by_line_may_be_json_in_a_text(door, translator):
    """tritonclient sends no lists."""
    for name, value in {"terms": TERMS, "glossary": GLOSSARY}.items():
        found = infer(door, **{name: json.dumps(value)})
        value = kt.Glossary(value) if name == "glossary" else value
        assert found == translator.translate(LINES, **{name: value})


def test_lines_and_libretranslate_take_glossaries(door, translator):
    expected = translator.translate(LINES, glossary=kt.Glossary(GLOSSARY))
    query = urllib.parse.urlencode({"glossary": json.dumps(GLOSSARY)})
    body = "\n".join(LINES).encode()
    status, _, answer = door.request("POST", f"/lines/en-de?{query}", body)
    assert (status, answer.decode().splitlines()) == (200, expected)
    fields = {"q": "<p>the <b>dog</b> runs</p>", "format": "html", "glossary": GLOSSARY}
    fields |= {"source": "en", "target": "de", "terms": ["two"]}
    json_type = {"Content-Type": "application/json"}
    status, _, answer = door.request("POST", "/translate", json.dumps(fields), json_type)
    text = json.loads(answer)["translatedText"].replace("<b>", "").replace("</b>", "")
    assert status == 200 and "ein mann" in text and "two" in text


def test_requests_with_values_by_line_share_batches(door, translator):
    door._pools["en-de"].gate.clear()
    before = len(door.batches)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        first = threads.submit(infer, door, ["two"])
        while door.batches[-1][0] != ["two"]:
            time.sleep(0.01)
        others = [
            threads.submit(infer, door, [line], terms=[terms])
            for line, terms in zip(LINES, TERMS, strict=True)
        ]
        while door.models.get("en-de").queue.waiting < 3:
            time.sleep(0.01)
        door._pools["en-de"].gate.set()
        assert [one.result()[0] for one in others] == translator.translate(LINES, terms=TERMS)
        first.result()
    # Lines of similar length share a batch, with the terms of their requests.
    assert max(len(lines) for lines, _ in door.batches[before:]) > 1


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"terms": TERMS[:2]}, "terms has 2 values, and the request has 3 lines"),
        ({"terms": [["hat"], 5, []]}, "terms must be a list of texts"),
        ({"terms": 7}, "terms must be a list of texts"),
        ({"max_length": [3, "many", 2]}, "max_length must be an integer, got 'many'"),
        ({"glossary": ["the dog"]}, "glossary must be an object of target phrases"),
        ({"glossary": "{"}, "glossary cannot be read"),
        ({"glossary": {"the dog": " "}}, "An entry needs a source and a target phrase"),
        ({"forbidden_words": ["x"]}, "en-de does not take forbidden_words"),
        ({"term": ["x"]}, "en-de does not take term. Did you mean terms?"),
        ({"glosary": {}}, "en-de does not take glosary. Did you mean glossary?"),
        ({"max_length": 8193}, "max_length must be at least 1 and at most 8192, got 8193"),
        ({"terms": ["a"] * 50 + ["a" * 500]}, "Their product is 8192 at most"),
        ({"terms": ["a"] * 101}, "terms has 101 texts for a line, and 100 at most"),
        ({"terms": [f"a {n}" for n in range(10_000)]}, "terms has 10000 texts for a line"),
    ],
)
def test_errors_name_the_invalid_option(door, parameters, message):
    assert message in infer(door, **parameters)


def test_a_text_in_brackets_is_no_list():
    known = {"terms": Option("terms", "int32", 3)}
    read = functools.partial(checked_options, "en-de", known, lines=None)
    assert read({"terms": "[1]"}) == {"terms": ["[1]"]}
    assert read({"terms": '["a", "b"]'}) == {"terms": ["a", "b"]}


def test_a_stream_that_has_begun_waits_for_room_in_the_queue():
    tries = []

    async def answer(record, *request):
        tries.append(request)
        if len(tries) % 3:
            raise Busy("full")
        return ["done"]

    async def run(started):
        stream = types.SimpleNamespace(
            started=started, reading=asyncio.create_task(asyncio.sleep(60))
        )
        try:
            return await _Lines(types.SimpleNamespace(answer=answer))._results(stream, None, "x")
        finally:
            stream.reading.cancel()

    assert asyncio.run(run(True)) == ["done"] and tries == [("x",)] * 3
    with pytest.raises(Busy):
        asyncio.run(run(False))


def test_the_lines_protocol_takes_one_value_for_all_lines(door):
    query = urllib.parse.urlencode({"terms": json.dumps(TERMS)})
    status, _, answer = door.request("POST", f"/lines/en-de?{query}", b"a man")
    assert status == 400 and b"one value for all lines" in answer


def test_terms_of_a_glossary_take_the_place_of_aligned_words():
    artefact = exports.artefact(exports.DETAILED)
    door = local_service.Running({"en-de": local_service.Pool(artefact)})
    try:
        lines = [LINES[1], LINES[2], "the dog and the dog"]
        expected = Translator(artefact, threads=1).translate(lines, glossary=GLOSSARY)
        assert infer(door, lines, glossary=GLOSSARY) == expected
        assert "ein mann" in expected[0] and expected[1] == infer(door, lines)[1]
        assert "phrases of the glossary are in line 1, and 20 at most" in infer(
            door, ["red " * 21], glossary=GLOSSARY
        )
        assert "does not take terms" in infer(door, lines, terms=["two"])
    finally:
        door.stop()
