"""The protocol of LibreTranslate: `/translate` and `/languages`, for models named after languages.

A model that translates and is called `en-de` serves English to German. A text is translated
sentence by sentence; its lines, placeholders and, with the format `html`, its tags stay. Options of
the search, such as `glossary`, apply to each sentence. Detection of the language is refused.
"""

import re
import urllib.parse
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.documents.translation import Document, aligned_text
from keras_transformer.export.serving.bodies import (
    MULTIPART,
    read_form,
    read_json,
    request_seconds,
)
from keras_transformer.export.serving.limits import (
    FORM_FIELDS,
    RESULT_BYTES,
    TAGS,
    on_thread_if_large,
)
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Invalid, TooLarge, WrongType
from keras_transformer.export.serving.request_log import Record

# Languages, each perhaps with its script or region, as zh-Hans or pt-BR.
_LANGUAGE = r"([a-z]{2,3}(?:-(?:[A-Z]{2}|[A-Z][a-z]{3}))?)"
_PAIR = re.compile(f"{_LANGUAGE}-{_LANGUAGE}")
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_FORMATS = ("text", "html")
# The fields of the protocol. `secret` has no effect.
_FIELDS = ("q", "source", "target", "format", "alternatives", "api_key", "secret")
_NO_DETECTION = "These models do not detect languages: name the source."


class _Parsed(NamedTuple):
    """The part of a request that is kept while it waits."""

    model: Model
    documents: list[Document]
    is_list: bool
    alternatives: int
    options: dict[str, Any]


def routes(models: Models, make_endpoint: Any) -> list[Route]:
    """Returns the routes; `make_endpoint` as in `http_v2`."""

    async def languages(request: Request) -> Response:
        pairs = _pairs(models)
        targets: dict[str, list[str]] = {code: [] for pair in pairs for code in pair}
        for source, target in pairs:
            targets[source].append(target)
        return JSONResponse(
            [
                {"code": code, "name": code, "targets": sorted(targets[code])}
                for code in sorted(targets)
            ]
        )

    async def detect(request: Request, body: bytes, record: Record) -> Response:
        raise Invalid(_NO_DETECTION)

    async def translate(request: Request, body: bytes, record: Record) -> Response:
        content_type = request.headers.get("content-type", "")
        fields = await on_thread_if_large(len(body), _fields, content_type, body)
        if models.clients.keys and not request.headers.get("authorization"):
            key = fields.get("api_key", request.query_params.get("api_key"))
            record.identify(models.clients.named_by(key))
        parsed = await on_thread_if_large(len(body), _parse, models, fields)
        lines = [sentence for document in parsed.documents for sentence in document.sentences]
        seconds = request_seconds(request.headers)
        results = []
        if lines:
            results = await models.answer(record, parsed.model, lines, parsed.options, seconds)
        size = len(body) + RESULT_BYTES * len(results)
        return await on_thread_if_large(size, _response, parsed, results)

    return [
        Route("/languages", languages),
        Route("/detect", make_endpoint("libretranslate", detect), methods=["POST"]),
        Route("/translate", make_endpoint("libretranslate", translate), methods=["POST"]),
    ]


def _pairs(models: Models) -> dict[tuple[str, ...], str]:
    """Returns the names of models that are named after languages, by source and target."""
    matches = [(name, _PAIR.fullmatch(name)) for name in models.names()]
    return {
        match.groups(): name
        for name, match in matches
        if match and models.get(name).description.task == "translate"
    }


def _parse(models: Models, fields: dict[str, Any]) -> _Parsed:
    texts = fields.get("q")
    is_list = isinstance(texts, list)
    if not is_list:
        texts = [texts]
    if not all(isinstance(text, str) for text in texts):
        raise Invalid("q is a text or a list of texts.")
    kind = fields.get("format", "text")
    if kind not in _FORMATS:
        raise Invalid(f"format is one of {', '.join(_FORMATS)}.")
    model, count = _model(models, fields), fields.get("alternatives", 0)
    digits = count if isinstance(count, str) else shorten(count)
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 3:
        raise Invalid("alternatives must be an integer from 0 to 999.")
    if kind == "html" and sum(text.count("<") for text in texts) > TAGS:
        raise TooLarge(f"A request may have {TAGS} tags.")
    texts = [text.removeprefix("\ufeff") for text in texts]  # a byte order mark
    models.admission.check_lines(
        len(texts) + sum(max(text.count("\n"), text.count("\r")) for text in texts)
    )
    try:
        for text in texts:
            text.encode("utf-8")  # half a surrogate pair cannot be written back
        languages = fields["source"].partition("-")[0], fields["target"]
        documents = [Document(text, kind, *languages) for text in texts]
    except ValueError as error:
        raise Invalid(f"q is not of this format: {error}") from error
    models.admission.check_lines(sum(len(document.sentences) for document in documents))
    options = model.checked_options(fields, fields=_FIELDS)
    return _Parsed(model, documents, is_list, int(digits), options)


def _fields(content_type: str, body: bytes) -> dict[str, Any]:
    """Reads JSON or a form, also one as a page sends it. A repeated field becomes a list."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _JSON:
        return read_json(body)
    if kind == MULTIPART:
        texts, files = read_form(content_type, body)
        if files:
            raise Invalid("The form has a file. Send the text in the field q.")
        return {name: values if len(values) > 1 else values[0] for name, values in texts.items()}
    if kind != _FORM:
        kinds = f"{_JSON}, {_FORM} or {MULTIPART}"
        raise WrongType(f"The content is {kinds}, not {shorten(kind)}.")
    try:
        pairs = urllib.parse.parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=FORM_FIELDS,
        )
    except ValueError as error:
        raise Invalid(f"The form cannot be read ({type(error).__name__}).") from error
    fields: dict[str, Any] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def _model(models: Models, fields: dict[str, Any]) -> Model:
    source, target = fields.get("source"), fields.get("target")
    if source == "auto":
        raise Invalid(_NO_DETECTION)
    pairs = _pairs(models)
    if not isinstance(source, str) or not isinstance(target, str) or (source, target) not in pairs:
        served = ", ".join(pairs.values()) or "none; name a model en-de to serve it here"
        raise Invalid(f"There is no model for these languages. There are: {served}.")
    return models.get(pairs[source, target])


def _response(parsed: _Parsed, results: list[Any]) -> Response:
    for number, result in enumerate(results, 1):
        if result.error is not None:
            raise Invalid(f"Line {number} is not translated: {result.error}")
    count = 1 + min(parsed.alternatives, max((len(r.texts) - 1 for r in results), default=0))
    texts = [_texts(parsed.documents, results, number) for number in range(count)]
    best, *others = texts
    fields: dict[str, list[Any]] = {"translatedText": best}
    if parsed.alternatives:
        # Sentences differ in their number of hypotheses, so a document may repeat.
        fields["alternatives"] = [
            list(dict.fromkeys(text[n] for text in others if text[n] != best[n]))
            for n in range(len(best))
        ]
    if parsed.is_list:
        return JSONResponse(fields)
    return JSONResponse({name: values[0] for name, values in fields.items()})


def _texts(documents: list[Document], results: list[Any], number: int) -> list[str]:
    """Returns the documents with the hypotheses of this number, or the last ones."""
    sentences = [sentence for document in documents for sentence in document.sentences]
    translations = iter(
        [aligned_text(*pair, number) for pair in zip(sentences, results, strict=True)]
    )
    return [document.render(translations) for document in documents]
