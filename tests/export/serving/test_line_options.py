"""Options by line, and glossaries: every protocol returns the texts of `Translator`."""

import asyncio
import functools
import json
import types
import urllib.parse

import pytest
from helpers import exports, local_service, service_requests
from helpers.service_requests import INFER, ask, translate

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
def door():
    with local_service.Running({"en-de": local_service.Pool(exports.artefact(SEARCH))}) as made:
        yield made


@pytest.fixture(scope="module")
def translator():
    return Translator(exports.artefact(SEARCH), threads=1)


def infer(door, lines=LINES, **parameters):
    fields = service_requests.infer(lines) | {"parameters": parameters}
    status, _, body = ask(door, INFER, fields | {"outputs": [{"name": "text"}]})
    answer = json.loads(body)
    return answer["outputs"][0]["data"] if status == 200 else answer["error"]


@pytest.mark.parametrize(
    "options",
    [
        {"terms": TERMS},
        {"max_length": [3, 5, 2]},
        {"terms": ["two"], "glossary": GLOSSARY},
        {"terms": json.dumps(TERMS)},  # tritonclient sends no lists
        {"glossary": json.dumps(GLOSSARY)},
    ],
)
def test_http_takes_a_value_for_each_line(door, translator, options):
    given = {
        name: json.loads(value) if isinstance(value, str) else value
        for name, value in options.items()
    }
    if "glossary" in given:
        given["glossary"] = kt.Glossary(given["glossary"])
    assert infer(door, **options) == translator.translate(LINES, **given)


def test_lines_and_libretranslate_take_glossaries(door, translator):
    query = urllib.parse.urlencode({"glossary": json.dumps(GLOSSARY)})
    status, _, answer = ask(door, f"/lines/en-de?{query}", "\n".join(LINES).encode())
    expected = translator.translate(LINES, glossary=kt.Glossary(GLOSSARY))
    assert (status, answer.decode().splitlines()) == (200, expected)
    fields = {"q": "<p>the <b>dog</b> runs</p>", "format": "html", "glossary": GLOSSARY}
    status, answer = translate(door, **fields, terms=["two"])
    text = answer["translatedText"].replace("<b>", "").replace("</b>", "")
    assert status == 200 and "ein mann" in text and "two" in text


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


@pytest.mark.anyio
async def test_a_stream_that_has_begun_waits_for_room_in_the_queue():
    tries = []

    async def answer(record, *request):
        tries.append(request)
        if len(tries) % 3:
            raise Busy("full")
        return ["done"]

    lines = _Lines(types.SimpleNamespace(answer=answer))
    reading = asyncio.create_task(asyncio.sleep(60))
    begun, new = (types.SimpleNamespace(started=x, reading=reading) for x in (True, False))
    assert await lines._results(begun, None, "x") == ["done"] and tries == [("x",)] * 3
    with pytest.raises(Busy):
        await lines._results(new, None, "x")
    reading.cancel()


def test_the_lines_protocol_takes_one_value_for_all_lines(door):
    query = urllib.parse.urlencode({"terms": json.dumps(TERMS)})
    status, _, answer = ask(door, f"/lines/en-de?{query}")
    assert status == 400 and b"one value for all lines" in answer


def test_terms_of_a_glossary_take_the_place_of_aligned_words():
    artefact, lines = exports.artefact(exports.DETAILED), [*LINES[1:], "the dog and the dog"]
    expected = Translator(artefact, threads=1).translate(lines, glossary=GLOSSARY)
    with local_service.Running({"en-de": local_service.Pool(artefact)}) as door:
        assert infer(door, lines, glossary=GLOSSARY) == expected
        assert "ein mann" in expected[0] and expected[1] == infer(door, lines)[1]
        refused = infer(door, ["red " * 21], glossary=GLOSSARY)
        assert "phrases of the glossary are in line 1, and 20 at most" in refused
        assert "does not take terms" in infer(door, lines, terms=["two"])
