"""The endpoints of the service as a table: a right request, its fields, and the texts it gets."""

import json
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

from helpers import artefacts

from keras_transformer.export.serving.protocols import (
    completions,
    libretranslate,
    lines,
    transcriptions,
    v2,
)

LINES = artefacts.LINES[:2]


class Endpoint(NamedTuple):
    """An endpoint.

    Attributes:
        path: str.
        body: dict, a right request.
        tables: dict from the place of an object in the body to its table of fields.
        texts: function from the answer, which is bytes, to its texts.
        encode: function from path and body to path, body and headers of a request.
        model: str, whose texts are expected.
        wrong: tuple of values, of which most kinds refuse one.
    """

    path: str
    body: dict[str, Any]
    tables: dict[tuple, tuple]
    texts: Callable[[bytes], list[str]]
    encode: Callable
    model: str = "en-de"
    wrong: tuple = (7, "?", [7], {"?": 7})


def as_json(path, body):
    return path, json.dumps(body).encode(), {"Content-Type": "application/json"}


def as_form(path, body):
    parts = [(f'name="{name}"', str(value)) for name, value in body.items()]
    parts.append(('name="file"; filename="a.wav"', "sound"))
    rows = "".join(f"--x\r\nContent-Disposition: form-data; {a}\r\n\r\n{b}\r\n" for a, b in parts)
    return path, f"{rows}--x--\r\n".encode(), {"Content-Type": "multipart/form-data; boundary=x"}


def as_query(path, body):
    return f"{path}?{urllib.parse.urlencode(body)}", "\n".join(LINES).encode(), {}


ENDPOINTS = {
    "v2": Endpoint(
        "/v2/models/en-de/infer",
        {
            "inputs": [
                {"name": "text", "datatype": "BYTES", "shape": [2], "data": LINES, "parameters": {}}
            ],
            "outputs": [{"name": "text", "parameters": {}}],
            "parameters": {},
        },
        {
            (): v2.REQUEST,
            ("parameters",): v2.PARAMETERS,
            ("inputs", 0): v2.INPUT_FIELDS,
            ("inputs", 0, "parameters"): v2.INPUT_PARAMETERS,
            ("outputs", 0): v2.OUTPUT,
            ("outputs", 0, "parameters"): v2.OUTPUT_PARAMETERS,
        },
        lambda answer: json.loads(answer)["outputs"][0]["data"],
        as_json,
    ),
    "completions": Endpoint(
        "/v1/completions",
        {"model": "story", "prompt": LINES, "seed": 5, "stream": False, "stream_options": {}},
        {(): completions.FIELDS, ("stream_options",): completions.STREAM_OPTIONS},
        lambda answer: [choice["text"] for choice in json.loads(answer)["choices"]],
        as_json,
        "story",
    ),
    "libretranslate": Endpoint(
        "/translate",
        {"q": LINES, "source": "en", "target": "de"},
        {(): libretranslate.FIELDS},
        lambda answer: json.loads(answer)["translatedText"],
        as_json,
    ),
    "transcriptions": Endpoint(
        "/v1/audio/transcriptions",
        {"model": "whisper"},
        {(): transcriptions.FIELDS},
        lambda answer: [json.loads(answer)["text"]],
        as_form,
        "whisper",
        ("?",),
    ),
    "lines": Endpoint(
        "/lines/en-de",
        {},
        {(): lines.FIELDS},
        lambda answer: answer.decode().splitlines(),
        as_query,
        wrong=("?",),
    ),
}


def fields():
    """Yields the name of each endpoint, the place of an object in its body, and a field of it."""
    for name, endpoint in ENDPOINTS.items():
        for place, table in endpoint.tables.items():
            for field in table:
                yield name, place, field


def changed(name, place, key, value):
    """Returns the request of an endpoint with another value at a place, or without it: `None`."""
    endpoint = ENDPOINTS[name]
    body = json.loads(json.dumps(endpoint.body))
    part = body
    for step in place:
        part = part[step]
    part[key] = value
    if value is None:
        del part[key]
    return endpoint.encode(endpoint.path, body)
