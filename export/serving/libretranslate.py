"""The door of LibreTranslate: `/translate` and `/languages`, for models named after languages.

A model that translates and is called `en-de` serves English to German. A text is translated line
by line, as a file is. What these models cannot do is refused by name: to detect a language, and to
translate the text between the tags of HTML.
"""

import re
import urllib.parse
from typing import NamedTuple

from starlette.responses import JSONResponse
from starlette.routing import Route

from keras_transformer.export.serving.bodies import aside, read_json, request_seconds
from keras_transformer.export.serving.limits import Invalid, WrongType, shown
from keras_transformer.export.serving.models import Model

_PAIR = re.compile(r"([a-z]{2,3})-([a-z]{2,3})")
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_NO_DETECTION = "These models do not detect languages: name the source."


def routes(models, door):
    """The routes; `door` as in `http_v2`."""

    async def languages(request):
        return JSONResponse(_languages(models))

    async def detect(request, body, record):
        raise Invalid(_NO_DETECTION)

    async def translate(request, body, record):
        return await _translate(models, request, body, record)

    return [
        Route("/languages", languages),
        Route("/detect", door("libretranslate", detect), methods=["POST"]),
        Route("/translate", door("libretranslate", translate), methods=["POST"]),
    ]


def _pairs(models):
    """Names of the models that are named after languages, by their source and target."""
    found = {name: _PAIR.fullmatch(name) for name in models.names()}
    return {
        match.groups(): name
        for name, match in found.items()
        if match and models.get(name).description.task == "translate"
    }


def _languages(models):
    pairs = _pairs(models)
    codes = sorted({code for pair in pairs for code in pair})
    return [
        {
            "code": code,
            "name": code,
            "targets": sorted(target for source, target in pairs if source == code),
        }
        for code in codes
    ]


class _Asked(NamedTuple):
    """The part of a request that is kept while it waits."""

    model: Model
    parts: list  # for each text its lines
    several: bool
    alternatives: int


async def _translate(models, request, body, record):
    kind = request.headers.get("content-type", "")
    asked = await aside(len(body), _asked, models, kind, body)
    items = [line for part in asked.parts for line in part]
    seconds = request_seconds(request.headers)
    results = await models.answer(record, asked.model, items, seconds=seconds)
    return await aside(len(body), _response, asked, results)


def _asked(models, content_type, body):
    fields = _read(content_type, body)
    texts = fields.get("q")
    several = isinstance(texts, list)
    texts = texts if several else [texts]
    if not all(isinstance(text, str) for text in texts):
        raise Invalid("q is a text or a list of texts.")
    if fields.get("format", "text") != "text":
        raise Invalid("Only format text is translated: tags of html would be lost or moved.")
    model, count = _model(models, fields), _alternatives(fields.get("alternatives", 0))
    models.check_lines(len(texts) + sum(text.count("\n") for text in texts))
    return _Asked(model, [text.split("\n") for text in texts], several, count)


def _response(asked, results):
    for number, result in enumerate(results, 1):
        if result.error is not None:
            raise Invalid(f"Line {number} is not translated: {result.error}")
    answers, rest = [], iter(results)
    for part in asked.parts:
        answers.append([next(rest) for _ in part])
    answer = {"translatedText": [_joined(part, 0) for part in answers]}
    if count := asked.alternatives:
        answer["alternatives"] = [
            [_joined(part, n) for n in range(1, 1 + min(count, _fewest(part)))] for part in answers
        ]
    return JSONResponse(answer if asked.several else {name: one for name, (one,) in answer.items()})


def _joined(results, number):
    """A text from its lines: of each the hypothesis of that number, or the last that there is."""
    return "\n".join(result.texts[min(number, len(result.texts) - 1)] for result in results)


def _fewest(results):
    """How many hypotheses but the best the longest list of a text has."""
    return max((len(result.texts) for result in results), default=1) - 1


def _read(content_type, body):
    """The fields of a request, as JSON or as a form."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _JSON:
        return read_json(body)
    if kind != _FORM:
        raise WrongType(f"The content is {_JSON} or {_FORM}, not {shown(kind)}.")
    try:
        text = body.decode("ascii")
        fields = urllib.parse.parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=1000
        )
    except ValueError as error:
        raise Invalid(f"The form cannot be read ({type(error).__name__}).") from error
    found = dict(fields)
    texts = [value for name, value in fields if name == "q"]
    return found | {"q": texts if len(texts) > 1 else found.get("q")}


def _model(models, asked):
    source, target = asked.get("source"), asked.get("target")
    if source == "auto":
        raise Invalid(_NO_DETECTION)
    pairs = _pairs(models)
    if not isinstance(source, str) or not isinstance(target, str) or (source, target) not in pairs:
        served = ", ".join(pairs.values()) or "none; a model is served here when called en-de"
        raise Invalid(f"There is no model for these languages. There are: {served}.")
    return models.get(pairs[source, target])


def _alternatives(value):
    text = value if isinstance(value, str) else shown(value)
    if not (text.isascii() and text.isdigit()) or len(text) > 3:
        raise Invalid("alternatives is how many more translations are asked for.")
    return int(text)
