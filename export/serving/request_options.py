"""Checks the options of a request or of its lines, with the bounds of the manifest."""

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

from keras_transformer.export.artefact.options import Option
from keras_transformer.export.serving.fields import Table, as_list, unknown
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
            others = [field for field, option in places.items() if option in (None, *known)]
            raise unknown(model, name, [*known], others)
        if place in names:
            raise Invalid(f"{names[place]} and {name} are the same. Pass one of them.")
        names[place] = name
        option = known[place]
        highest = min(option.highest, HIGHEST.get(place, math.inf))
        options[place] = _read(option._replace(name=name, highest=highest), value, lines)
    return options


def _read(option: Option, value: Any, lines: int | None) -> Any:
    """Returns an option of a request: for all lines, or as `ByLine`."""
    name = option.name
    if option.dtype == "object":
        return read_glossary(name, value)
    if isinstance(value, str) and value.startswith("["):  # addresses have no lists
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(value)
            if option.rank < 2 or all(isinstance(item, (str, list)) for item in parsed):
                value = parsed  # else a text
    if not option.differs(value):
        return _value(option, value)
    if lines is None:
        raise Invalid(f"{name} has one value for all lines here, not one for each line.")
    if len(value) != lines:
        raise Invalid(f"{name} has {len(value)} values, and the request has {lines} lines.")
    return ByLine(_value(option, one) for one in value)


def _value(option: Option, value: Any) -> Any:
    """Returns an option of a line: a number, a text, or a list of texts."""
    if option.rank > 2 and isinstance(value, str):
        value = [value]
    elif option.dtype == "int32" and option.rank < 2:
        value = _integer(value)
    elif option.rank < 2 and isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    try:
        option.check(value)
    except (TypeError, ValueError) as error:
        raise Invalid(str(error)) from error
    if option.rank > 1:
        check_texts(option.name, as_list(value))
    return value


def _integer(value: Any) -> Any:
    """Returns an integer that is written as a text, or as a number with a point."""
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, str) or isinstance(value, float) and value.is_integer():
            return int(value)
    return value
