"""Whole documents: paragraphs, HTML, Markdown, subtitles and message catalogues.

A document is taken apart into units: texts between two blocks, with the inline markup as positions
in the text. The sentences of all units are translated in one call. The word alignment tells where
the markup belongs in the translation.

`units.py` holds a unit and puts its markup back. Each other file reads and writes one format. To
add a format, write a function from a text to `Parts` and name it in `FORMATS` of `formats.py`.

This package needs no TensorFlow. It needs the extra `documents`.
"""

from keras_transformer.export.documents.formats import FORMATS, format_of, translate_file
from keras_transformer.export.documents.sentences import split_sentences
from keras_transformer.export.documents.translation import (
    AlignedText,
    Document,
    DocumentTranslator,
    SentenceTranslator,
    aligned,
    aligned_text,
)

__all__ = [
    "FORMATS",
    "AlignedText",
    "Document",
    "DocumentTranslator",
    "SentenceTranslator",
    "aligned",
    "aligned_text",
    "format_of",
    "split_sentences",
    "translate_file",
]
