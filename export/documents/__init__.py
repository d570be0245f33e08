"""Whole documents: paragraphs, HTML, Markdown, subtitles and message catalogues.

A document is taken apart into units: texts between two blocks, with the inline markup as positions
in the text. The sentences of all units are translated in one call. The word alignment determines
the places of the markup in the translation.

- `guard.py` finds the code that no translation may change, in every format.
- `units.py` holds a unit, puts its markup back and proves it.
- `translation.py` translates the sentences of documents.
- `html.py`, `markdown.py`, `subtitles.py` and `catalogues.py` each read one format.

A new format needs a function from a text to parts, in `PARSERS` of `translation.py`, and its
suffixes in `formats.py`.

This package needs no TensorFlow. It needs the extra `service`.
"""

from keras_transformer.export.documents.formats import translate_file
from keras_transformer.export.documents.sentences import split_sentences
from keras_transformer.export.documents.translation import AlignedText, DocumentTranslator

__all__ = ["AlignedText", "DocumentTranslator", "split_sentences", "translate_file"]
