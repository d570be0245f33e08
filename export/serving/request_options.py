"""Checks the options of a request or of its lines, and makes terms from a glossary."""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_transformer.export.artefact.messages import nearest, shorten
from keras_transformer.export.artefact.signature import MOST_SEED, SEED
from keras_transformer.export.runtime.options import terms_of_lines
from keras_transformer.export.serving.engine import Description
from keras_transformer.export.serving.limits import (
    NEW_TOKENS,
    PADDED_CHARACTERS,
    PLACED_TERMS,
    TERMS,
)
from keras_transformer.export.serving.line_queue import ByLine, Lines
from keras_transformer.export.serving.refusals import Invalid
from keras_transformer.text.glossary import Glossary

GLOSSARY = "glossary"


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
            options[name] = _glossary(value)
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
        _check_texts(name, texts)
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


def _glossary(value: Any) -> Glossary:
    """Returns a request's glossary, from an object of target phrases by source phrase or JSON."""
    try:
        entries = json.loads(value) if isinstance(value, str) else value
        if isinstance(entries, dict) and all(isinstance(x, str) for x in entries.values()):
            return Glossary(entries)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{GLOSSARY} cannot be read: {error!s:.200}") from error
    raise Invalid(f"{GLOSSARY} is an object of target phrases by source phrase.")


def with_glossary(
    items: Lines, options: Mapping[str, Any], description: Description
) -> dict[str, Any]:
    """Returns the options with a glossary for each line, or with its terms."""
    options = dict(options)
    glossary = options.pop(GLOSSARY)
    if description.places_terms:
        for number, line in enumerate(items, 1):
            line = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
            count = sum(1 for _ in glossary.occurrences(line))
            if count > PLACED_TERMS:
                raise Invalid(
                    f"{count} phrases of the {GLOSSARY} are in line {number}, and "
                    f"{PLACED_TERMS} at most. Split the line into sentences."
                )
        return options | {GLOSSARY: ByLine([glossary] * len(items))}
    terms = [*terms_of_lines(items, glossary, options.get("terms"))]
    for one in terms:
        _check_texts("terms", one)
    return options | {"terms": ByLine(terms)}


def _check_texts(name: str, texts: Sequence[str]) -> None:
    """Raises `Invalid` for texts of a line that would cost too much."""
    if len(texts) > TERMS:
        raise Invalid(f"{name} has {len(texts)} texts for a line, and {TERMS} at most.")
    longest = max(map(len, texts), default=0)
    if len(texts) * longest > PADDED_CHARACTERS:
        raise Invalid(
            f"{name} has {len(texts)} texts, one of them with {longest} characters. Their "
            f"product is {PADDED_CHARACTERS} at most."
        )
