"""Plain text: each line that holds text is a unit."""

import re

from keras_transformer.export.documents.units import Unit, has_letters


def plain_parts(text: str) -> list[str | Unit]:
    """Returns the lines of a text as units; white space around and between them stays."""
    parts: list[str | Unit] = []
    for piece in re.split(r"(^[^\S\n]+|[^\S\n]*\n\s*)", text):
        unit = Unit()
        unit.add_text(piece)
        unit.close()
        parts.append(unit if has_letters(unit.text) else piece)
    return parts
