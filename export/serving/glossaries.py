"""Glossaries and terms of a request."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.export.artefact.options import Option
from keras_transformer.export.runtime.glossaries import terms_of_lines
from keras_transformer.export.runtime.glossary_runner import PLACED
from keras_transformer.export.serving.limits import PADDED_CHARACTERS, PLACED_TERMS, TERMS
from keras_transformer.export.serving.line_queue import ByLine, Lines
from keras_transformer.export.serving.refusals import Invalid
from keras_transformer.text.glossary import Glossary

GLOSSARY = PLACED.name


def read_glossary(name: str, value: Any) -> Glossary:
    """Returns a request's glossary, from an object of target phrases by source phrase or JSON."""
    try:
        entries = json.loads(value) if isinstance(value, str) else value
        if isinstance(entries, dict) and all(isinstance(x, str) for x in entries.values()):
            return Glossary(entries)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{name} cannot be read: {error!s:.200}") from error
    raise Invalid(f"{name} must be an object of target phrases by source phrase.")


async def by_line(
    items: Lines, options: Mapping[str, Any], known: Mapping[str, Option]
) -> Mapping[str, Any]:
    """Returns the options with a glossary for each line, or with its terms.

    Args:
        items: lines.
        options: dict, checked.
        known: dict from names to `Option`, of the model.
    """
    if GLOSSARY not in options:
        return options
    return await asyncio.to_thread(_divided, items, options, known[GLOSSARY])


def _divided(items: Lines, options: Mapping[str, Any], option: Option) -> dict[str, Any]:
    options = dict(options)
    glossary = options.pop(GLOSSARY)
    if option == PLACED:
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
        check_texts("terms", one)
    return options | {"terms": ByLine(terms)}


def check_texts(name: str, texts: Sequence[str]) -> None:
    """Raises `Invalid` for texts of a line that would cost too much."""
    if len(texts) > TERMS:
        raise Invalid(f"{name} has {len(texts)} texts for a line, and {TERMS} at most.")
    longest = max(map(len, texts), default=0)
    if len(texts) * longest > PADDED_CHARACTERS:
        raise Invalid(
            f"{name} has {len(texts)} texts, one of them with {longest} characters. Their "
            f"product is {PADDED_CHARACTERS} at most."
        )
