"""Checks the options of a request or of its lines."""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_transformer.export.artefact.messages import nearest, shorten
from keras_transformer.export.artefact.signature import MOST_SEED, SEED
from keras_transformer.export.serving.engine import Description
from keras_transformer.export.serving.glossaries import GLOSSARY, check_texts, read_glossary
from keras_transformer.export.serving.limits import NEW_TOKENS
from keras_transformer.export.serving.line_queue import ByLine
from keras_transformer.export.serving.refusals import Invalid


def check_names(names: Iterable[str], known: Iterable[str], place: str = "request") -> None:
    """Raises `Invalid` for a name that is not known.

    Args:
        names: the names that a request has.
        known: the names that the protocol defines.
        place: str, the part of the request that has them.
    """
    for name in names:
        if name not in known:
            meant = nearest(name, known)
            raise Invalid(
                f"The {place} has the unknown field {shorten(name)}.{meant} "
                f"The known fields are: {', '.join(known)}."
            )


def checked_options(
    model: str,
    description: Description,
    values: Mapping[str, Any],
    lines: int | None,
    fields: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the options of a request to a model; see `Model.checked_options`."""
    known, options = description.options, {}
    takes_glossary = description.places_terms or "terms" in known
    for name, value in values.items():
        if value is None or name in fields:
            continue
        if name == SEED:
            options[name] = _seed(model, description, value)
        elif name == GLOSSARY and takes_glossary:
            options[name] = read_glossary(value)
        elif name in known:
            options[name] = _option(name, value, *known[name], lines)
        else:
            meant = nearest(name, [*known, SEED, GLOSSARY, *fields])
            has = ", ".join([*known, *[GLOSSARY] * takes_glossary]) or "none"
            raise Invalid(f"{model} does not take {name:.100}.{meant} Its options are: {has}.")
    return options


def _seed(model: str, description: Description, value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        value = int(value)
    if not description.samples:
        raise Invalid(f"{model} draws no random numbers: leave out the seed.")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_SEED:
        raise Invalid(f"The seed must be an integer from 0 to {MOST_SEED}.")
    return value


def _option(name: str, value: Any, dtype: str, rank: int, lines: int | None) -> Any:
    """Returns an option of a request: for all lines, or as `ByLine`."""
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
        return ByLine(_value(name, one, dtype, rank) for one in value)
    return _value(name, value, dtype, rank)


def _value(name: str, value: Any, dtype: str, rank: int) -> Any:
    """Returns an option of a line: a number, a text, or a list of texts."""
    if rank > 1:
        texts = value if isinstance(value, list) else [value]
        if (rank == 2 and len(texts) != 1) or not all(isinstance(text, str) for text in texts):
            raise Invalid(f"{name} is {'a text' if rank == 2 else 'a list of texts'}.")
        check_texts(name, texts)
        return texts[0] if rank == 2 else texts
    kind = int if dtype.startswith("int") else float
    try:
        number = kind(value) if isinstance(value, (str, int, float)) else None
    except (ValueError, OverflowError):
        number = None
    if isinstance(value, bool) or number is None or not (isinstance(value, str) or number == value):
        raise Invalid(f"{name} is {'an integer' if kind is int else 'a number'}.")
    if name in ("max_length", "min_length") and number > NEW_TOKENS:
        raise Invalid(f"{name} is {NEW_TOKENS} at most, not {shorten(value)}.")
    return number
