"""Whole documents: paragraphs, HTML, Markdown, subtitles and message catalogues.

A document is taken apart into units: texts between two blocks, with the inline markup as positions
in the text. The sentences of all units are translated in one call. The word alignment determines
the places of the markup in the translation.

`units.py` holds a unit and puts its markup back. Each other file reads and writes one format. A
new format goes into a file with a function from a text to parts, and into `FORMATS` of
`formats.py`.

This package needs no TensorFlow. It needs the extra `documents`.
"""

from keras_transformer.export.documents.formats import translate_file
from keras_transformer.export.documents.sentences import split_sentences
from keras_transformer.export.documents.translation import AlignedText, DocumentTranslator

__all__ = ["AlignedText", "DocumentTranslator", "split_sentences", "translate_file"]
