"""The parsers of documents: from a text to its parts, strings that stay and units.

A new format needs a function here, or one from a text and a `DocumentTranslator` in `formats.py`.
"""

from collections.abc import Callable
from typing import Any

from keras_transformer.export.documents.html import html_parts, subtitle_parts
from keras_transformer.export.documents.markdown import markdown_parts
from keras_transformer.export.documents.units import plain_parts

PARSERS: dict[str, Callable[..., Any]] = {
    "text": plain_parts,
    "html": html_parts,
    "markdown": markdown_parts,
    "subtitle": subtitle_parts,
}
