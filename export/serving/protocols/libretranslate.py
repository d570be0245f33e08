"""The protocol of LibreTranslate: `/translate` and `/languages`, for models named after languages.

A model that translates and is called `en-de` serves English to German. A text is translated
sentence by sentence; its lines, placeholders and, with the format `html`, its tags stay. Options of
the search, such as `glossary`, apply to each sentence. Detection of the language is refused.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.export.documents.translation import Document, aligned_text
from keras_transformer.export.serving.bodies import FORM, JSON, MULTIPART, read_content
from keras_transformer.export.serving.endpoints import Call, endpoint, page
from keras_transformer.export.serving.fields import (
    ANY,
    TEXT,
    TEXTS,
    Field,
    as_list,
    integer,
    one_of,
    read_fields,
)
from keras_transformer.export.serving.limits import TAGS
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Invalid, TooLarge

# Languages, each perhaps with its script or region, as zh-Hans or pt-BR.
_LANGUAGE = r"([a-z]{2,3}(?:-(?:[A-Z]{2}|[A-Z][a-z]{3}))?)"
_PAIR = re.compile(f"{_LANGUAGE}-{_LANGUAGE}")
FIELDS = (
    Field("q", TEXTS, needed=True),
    Field("source", TEXT, needed=True),
    Field("target", TEXT, needed=True),
    Field("format", one_of(["text", "html"]), "text"),
    Field("alternatives", integer(0, 999), 0),
    Field("api_key", ANY),
    Field("secret", ANY),  # has no effect
)
_NO_DETECTION = "These models do not detect languages: name the source."


def routes(models: Models) -> list[Route]:
    """Returns the routes of the protocol."""
    return [
        page(models, "/languages", _languages),
        endpoint(models, "/detect", "libretranslate", _detect, _answer),
        endpoint(models, "/translate", "libretranslate", _call, _answer),
    ]


def _languages(models: Models, request: Request) -> list[dict[str, Any]]:
    pairs = _pairs(models)
    targets: dict[str, list[str]] = {code: [] for pair in pairs for code in pair}
    for source, target in pairs:
        targets[source].append(target)
    return [
        {"code": code, "name": code, "targets": sorted(targets[code])} for code in sorted(targets)
    ]


def _detect(models: Models, request: Request, body: bytes) -> Call:
    raise Invalid(_NO_DETECTION)


def _pairs(models: Models) -> dict[tuple[str, ...], str]:
    """Returns the names of models that are named after languages, by source and target."""
    matches = [(name, _PAIR.fullmatch(name)) for name in models.names()]
    return {
        match.groups(): name
        for name, match in matches
        if match and models.get(name).description.task == "translate"
    }


def _call(models: Models, request: Request, body: bytes) -> Call:
    kinds = JSON, FORM, MULTIPART
    given, files = read_content(request.headers.get("content-type", ""), body, kinds)
    client = None
    if models.clients.keys and not request.headers.get("authorization"):
        client = models.clients.named_by(given.get("api_key", request.query_params.get("api_key")))
    if files:
        raise Invalid("The form has a file. Send the text in the field q.")
    values = read_fields(given, FIELDS, written=True, has_options=True)
    model = _model(models, values["source"], values["target"])
    documents = _documents(models, values)
    options = model.checked_options(given, table=FIELDS)
    answer = {
        "documents": documents,
        "alternatives": values["alternatives"],
        "is_list": isinstance(values["q"], list),
    }
    return Call(model, _sentences(documents), options, answer, client=client)


def _documents(models: Models, values: dict[str, Any]) -> list[Document]:
    """Returns the texts of a request, divided into sentences."""
    kind, texts = values["format"], as_list(values["q"])
    if kind == "html" and sum(text.count("<") for text in texts) > TAGS:
        raise TooLarge(f"A request may have {TAGS} tags.")
    texts = [text.removeprefix("\ufeff") for text in texts]  # a byte order mark
    models.admission.check_lines(
        len(texts) + sum(max(text.count("\n"), text.count("\r")) for text in texts)
    )
    try:
        for text in texts:
            text.encode("utf-8")  # half a surrogate pair cannot be written back
        languages = values["source"].partition("-")[0], values["target"]
        documents = [Document(text, kind, *languages) for text in texts]
    except ValueError as error:
        raise Invalid(f"q is not of this format: {error}") from error
    models.admission.check_lines(len(_sentences(documents)))
    return documents


def _sentences(documents: Sequence[Document]) -> list[Any]:
    return [sentence for document in documents for sentence in document.sentences]


def _model(models: Models, source: str, target: str) -> Model:
    if source == "auto":
        raise Invalid(_NO_DETECTION)
    pairs = _pairs(models)
    if (source, target) not in pairs:
        served = ", ".join(pairs.values()) or "none"
        raise Invalid(
            f"There is no model for these languages. There are: {served}. A model is served here "
            "if its name is two language codes, such as en-de."
        )
    return models.get(pairs[source, target])


def _answer(call: Call, results: Sequence[Any], tokens: int) -> Response:
    for number, result in enumerate(results, 1):
        if result.error is not None:
            raise Invalid(f"Line {number} is not translated: {result.error}")
    documents, most = call.values["documents"], call.values["alternatives"]
    count = 1 + min(most, max((len(result.texts) - 1 for result in results), default=0))
    best, *others = [_texts(documents, results, number) for number in range(count)]
    fields: dict[str, list[Any]] = {"translatedText": best}
    if most:
        # Sentences differ in their number of hypotheses, so a document may repeat.
        fields["alternatives"] = [
            list(dict.fromkeys(text[n] for text in others if text[n] != best[n]))
            for n in range(len(best))
        ]
    if call.values["is_list"]:
        return JSONResponse(fields)
    return JSONResponse({name: values[0] for name, values in fields.items()})


def _texts(documents: list[Document], results: Sequence[Any], number: int) -> list[str]:
    """Returns the documents with the hypotheses of this number, or the last ones."""
    pairs = zip(_sentences(documents), results, strict=True)
    translations: Iterator[str] = iter([aligned_text(*pair, number) for pair in pairs])
    return [document.render(translations) for document in documents]
