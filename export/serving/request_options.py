"""Checks the options of a request or of its lines, with the bounds of the manifest."""

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.artefact.options import Option
from keras_transformer.export.serving.fields import Table, unknown
from keras_transformer.export.serving.glossaries import check_texts, read_glossary
from keras_transformer.export.serving.limits import NEW_TOKENS
from keras_transformer.export.serving.line_queue import ByLine
from keras_transformer.export.serving.refusals import Invalid

# Bounds of the service, beside the manifest's.
HIGHEST = {"max_length": NEW_TOKENS, "min_length": NEW_TOKENS}


def checked_options(
    model: str,
    known: Mapping[str, Option],
    given: Mapping[str, Any],
    lines: int | None,
    table: Table = (),
) -> dict[str, Any]:
    """Returns the options of a request to a model; see `Model.checked_options`."""
    places = {field.name: field.option for field in table}
    options: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in given.items():
        place = places.get(name, name)
        if value is None or place is None:
            continue
        if place not in known:
            raise unknown(model, name, [*known], [*places])
        if place in names:
            raise Invalid(f"{names[place]} and {name} are the same. Pass one of them.")
        names[place] = name
        option = known[place]
        highest = min(option.highest, HIGHEST.get(place, math.inf))
        options[place] = _read(option._replace(name=name, highest=highest), value, lines)
    return options


def _read(option: Option, value: Any, lines: int | None) -> Any:
    """Returns an option of a request: for all lines, or as `ByLine`."""
    name, rank = option.name, option.rank
    if option.dtype == "object":
        return read_glossary(name, value)
    if isinstance(value, str) and value.startswith("["):  # addresses have no lists
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(value)
            if rank < 2 or all(isinstance(item, (str, list)) for item in parsed):  # else a text
                value = parsed
    inner = value[0] if isinstance(value, list) and value else None
    if rank and (isinstance(inner, list) or rank < 3 and isinstance(value, list)):
        if lines is None:
            raise Invalid(f"{name} has one value for all lines here, not one for each line.")
        if len(value) != lines:
            raise Invalid(f"{name} has {len(value)} values, and the request has {lines} lines.")
        return ByLine(_value(option, one) for one in value)
    return _value(option, value)


def _value(option: Option, value: Any) -> Any:
    """Returns an option of a line: a number, a text, or a list of texts."""
    if option.rank > 1:
        return _texts(option, value)
    parsed = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            parsed = int(value) if option.dtype == "int32" else float(value)
    elif isinstance(value, float) and option.dtype == "int32" and value.is_integer():
        parsed = int(value)  # JSON of some clients has no integers
    try:
        option.check(parsed)
    except (TypeError, ValueError) as error:
        raise Invalid(str(error)) from error
    return parsed


def _texts(option: Option, value: Any) -> str | list[str]:
    texts = value if isinstance(value, list) else [value]
    if (option.rank == 2 and len(texts) != 1) or not all(isinstance(text, str) for text in texts):
        kind = "a text" if option.rank == 2 else "a list of texts"
        raise Invalid(f"{option.name} must be {kind}, got {shorten(value)}.")
    check_texts(option.name, texts)
    return texts[0] if option.rank == 2 else texts
