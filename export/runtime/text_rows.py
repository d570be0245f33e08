"""Texts and words as rows of ids, for models without a search.

What an encoder reads ends with the end token; `target_ids`, those of a language model, start with
the begin token. Two texts are two rows, or one row with `segment_ids`.
"""

import itertools

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import id_inputs, shown
from keras_transformer.export.runtime.lines import text_of, too_long
from keras_transformer.export.runtime.rows import Passage, Row, arrays, parsed
from keras_transformer.special_ids import BEGIN_ID, END_ID
from keras_transformer.text.words import encode_words


class TextReader:
    """Reads texts: one, or two as a pair or as a line with a TAB; dicts where there is more.

    A string is the JSON of such a dict.

    Args:
        artefact: Artefact of a forward pass that has a tokenizer and inputs of ids.
    """

    def __init__(self, artefact):
        inputs = artefact.manifest["inputs"]
        self._artefact, self._ids = artefact, id_inputs(inputs)
        self._segments = any(value["name"] == signature.SEGMENT_IDS for value in inputs)
        self._answers = artefact.manifest["task"] == "answer"
        known = {*self._ids, signature.SEGMENT_IDS}
        self._others = {value["name"]: value for value in inputs if value["name"] not in known}
        self._named = bool(self._others) or len(self._ids) > 2
        self._most = artefact.manifest["limits"]["source_length"]
        self._limits = {v["name"]: row_limit(artefact, v) for v in inputs if v["name"] in self._ids}
        self._counts = (1, 2) if self._segments else (1,)  # how many texts a row may hold
        if self._answers and len(self._ids) == 1:
            self._counts = (2,)

    def read(self, item):
        """The `Row` of an item; None where one of its texts is blank. Errors as `ArrayReader`."""
        others = {}
        if self._named and isinstance(item, (str, bytes)):
            text = text_of(item)
            if not text.strip():
                return None
            item = parsed(text)
        if isinstance(item, dict):
            texts = {name: _texts(item[name], self._counts) for name in self._ids if name in item}
            known = {*self._ids, *self._others}
            if set(item) != known:
                raise ValueError(
                    f"the model reads a dict of {sorted(known)}, and got "
                    f"{shown(sorted(map(str, item)))}"
                )
            rest = {name: value for name, value in item.items() if name not in texts}
            others = arrays(rest, self._others, self._most)
        elif self._named:
            raise TypeError(
                f"An input must be a dict of {[*self._ids, *self._others]}, or its JSON; got "
                f"{shown(item)}."
            )
        elif len(self._ids) == 2:
            texts = dict(zip(self._ids, ([text] for text in _texts(item, (2,))), strict=True))
        else:
            texts = {self._ids[0]: _texts(item, self._counts)}
        return self._row(texts, others)

    def _row(self, texts, inputs):
        """The `Row` of lists of texts by input name and of arrays; None where a text is blank."""
        passage = None
        for name, some in texts.items():
            pieces, spans = self._encode(name, some)
            if not all(pieces):
                return None
            if name == signature.TARGET_IDS:
                ids = [BEGIN_ID, *itertools.chain(*pieces)]
            else:
                ids = [token for row in pieces for token in (*row, END_ID)]
            inputs[name] = checked_row(ids, self._limits[name])
            if self._segments:
                counts = (len(row) + 1 for row in pieces)
                segments = ([number] * count for number, count in enumerate(counts, 1))
                inputs[signature.SEGMENT_IDS] = list(itertools.chain(*segments))
            if self._answers:  # the last input's last text
                end = len(ids) - 1
                passage = Passage(some[-1], spans, slice(end - len(pieces[-1]), end))
        return Row(inputs, len(ids), passage=passage)

    def _encode(self, name, texts):
        """The ids of each text; and where an answer is asked for, the places of the last one's."""
        tokenizer = self._artefact.tokenizer
        if name == signature.TARGET_IDS:
            tokenizer = self._artefact.target_tokenizer
        if not all(text.strip() for text in texts):
            return [[]], None
        if not self._answers:
            return [tokenizer.encode(text) for text in texts], None
        ids, spans = tokenizer.encode_with_spans(texts[-1])
        return [*(tokenizer.encode(text) for text in texts[:-1]), ids], spans


class WordReader:
    """Reads words: a list of them, or a line that is split at white space.

    Args:
        artefact: Artefact of a forward pass that has a tokenizer and one input of ids.
    """

    def __init__(self, artefact):
        (value,) = artefact.manifest["inputs"]
        self._tokenizer, self._name = artefact.tokenizer, value["name"]
        self._limit = row_limit(artefact, value)

    def read(self, item):
        """The `Row` of an item; None where it has no word. Errors as `ArrayReader`."""
        words = text_of(item).split() if isinstance(item, (str, bytes)) else _strings(item)
        if not words:
            return None
        ids, first_pieces = encode_words(self._tokenizer, words)
        ids = checked_row([*ids, END_ID], self._limit)
        return Row({self._name: ids}, len(ids), tuple(words), first_pieces)


def row_limit(artefact, value):
    """Most ids of a row of an input, by its entry in the manifest."""
    most, size = artefact.manifest["limits"]["source_length"], value["axes"][-1]
    return min(most, size) if isinstance(size, int) else most


def checked_row(ids, most):
    """The ids; raises `ValueError` where there are too many."""
    if len(ids) > most:
        raise ValueError(too_long(ids, most))
    return ids


def _texts(item, counts):
    """The texts of an item, as many as one of `counts`; a line may hold two with a TAB between."""
    if isinstance(item, (str, bytes)):
        texts = text_of(item).split("\t", 1 if 2 in counts else 0)
        problem = "no TAB between two texts"
    else:
        texts = _strings(item)
        problem = f"{len(texts)} texts, where this model reads {counts[-1]}"
    if not any(text.strip() for text in texts):
        return [""] * counts[0]
    if len(texts) not in counts:
        raise ValueError(problem)
    return texts


def _strings(item):
    """The strings of a list or tuple; raises `TypeError` for what is none."""
    if not isinstance(item, (list, tuple)) or not all(isinstance(t, (str, bytes)) for t in item):
        raise TypeError(
            "An input must be a string, or a list or tuple of strings where the model reads words "
            f"or two texts, got {shown(item)}."
        )
    return [text_of(text) for text in item]
