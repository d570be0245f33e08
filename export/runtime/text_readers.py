"""Turns lines, texts and words into rows of ids.

A text that an encoder reads ends with the end token. `target_ids`, the input of a language model,
start with the begin token. Two texts are two rows, or one row with `segment_ids`.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import id_inputs
from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.artefact.reader import Artefact
from keras_transformer.export.artefact.results import Passage, Row
from keras_transformer.export.runtime.input_readers import (
    ItemReader,
    arrays,
    check_names,
    parse_json,
)
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.text.corpora import encode_words
from keras_transformer.text.lines import text_of
from keras_transformer.text.vocabularies import between_of


class LineReader:
    """Reads lines of text for a search, with one `tokenizer.encode` for all lines.

    Args:
        artefact: Artefact with a tokenizer and the input `source_ids`.
        begin, end: sequences of int, ids that every row starts and ends with.
    """

    alone: tuple[type, ...] = (str, bytes)

    def __init__(self, artefact: Artefact, begin: Sequence[int] = (), end: Sequence[int] = ()):
        self._encode, self._begin, self._end = artefact.tokenizer.encode, begin, end
        self._most = artefact.manifest["limits"]["source_length"]
        # The most characters of such a line. Unicode normalization shortens some texts.
        longest = max(map(len, getattr(artefact.tokenizer, "pieces", [])), default=None)
        self._most_characters = longest and 4 * self._most * longest

    def read(self, items: list[str | bytes]) -> tuple[dict[int, Row], dict[int, str]]:
        texts, rows, refused = {}, {}, {}
        for index, line in enumerate(items):
            try:
                text = text_of(line)
            except ValueError as error:
                refused[index] = str(error)
            else:
                if self._has_too_many_characters(text):  # to encode it would take long
                    refused[index] = (
                        f"{len(text)} characters, where this artefact takes at most {self._most} "
                        "tokens; split or shorten it"
                    )
                elif text.strip():
                    texts[index] = text
        encoded = self._encode(list(texts.values()))  # one call: SentencePiece uses threads
        for index, tokens in zip(texts, encoded, strict=True):
            try:
                ids = _check_row([*self._begin, *tokens, *self._end], self._most)
            except ValueError as error:
                refused[index] = str(error)
            else:
                if _has_text(tokens):
                    rows[index] = Row({signature.SOURCE_IDS: ids}, len(ids))
        return rows, refused

    def _has_too_many_characters(self, text: str) -> bool:
        most = self._most_characters
        # White space may be any number of characters without a token.
        return most is not None and len(text) > most and sum(map(len, text.split())) > most


class TextReader(ItemReader):
    """Reads one text, or two texts as a pair or as a line with a TAB.

    A model with further inputs reads dicts by input name. A string is the JSON of such a dict.

    Args:
        artefact: Artefact of a forward pass that has a tokenizer and inputs of ids.
        padded: bool, whether rows of ids share a batch with padding.
    """

    def __init__(self, artefact: Artefact, padded: bool):
        super().__init__(padded)
        inputs = {value["name"]: value for value in artefact.manifest["inputs"]}
        self._artefact, self._ids = artefact, id_inputs(list(inputs.values()))
        self._segments = signature.SEGMENT_IDS in inputs
        self._answers = artefact.manifest["task"] == "answer"
        known = {*self._ids, signature.SEGMENT_IDS}
        self._others = {name: value for name, value in inputs.items() if name not in known}
        self._names = [*self._ids, *self._others]
        self._needs_dict = bool(self._others) or len(self._ids) > 2
        self._most = artefact.manifest["limits"]["source_length"]
        self._limits = {name: _row_limit(artefact, inputs[name]) for name in self._ids}
        self._counts = (1, 2) if self._segments else (1,)  # numbers of texts in a row
        if self._answers and len(self._ids) == 1:
            self._counts = (2,)

    def read_item(self, item: Any) -> Row | None:
        if self._needs_dict and isinstance(item, (str, bytes)):
            text = text_of(item)
            if not text.strip():
                return None
            item = parse_json(text)
        others = {}
        if isinstance(item, dict):
            texts = {name: _texts(item[name], self._counts) for name in self._ids if name in item}
            check_names(item, self._names)
            others = arrays({name: item[name] for name in self._others}, self._others, self._most)
        elif self._needs_dict:
            raise TypeError(
                f"An input must be a dict of {self._names}, or its JSON; got {shorten(item)}."
            )
        elif len(self._ids) == 2:
            texts = dict(zip(self._ids, ([text] for text in _texts(item, (2,))), strict=True))
        else:
            texts = {self._ids[0]: _texts(item, self._counts)}
        if not all(text.strip() for some in texts.values() for text in some):
            return None
        return self._text_row(texts, others)

    def _text_row(self, texts: dict[str, list[str]], inputs: dict[str, Any]) -> Row | None:
        """Returns the `Row` of texts and arrays by name; None if a text has no known piece."""
        passage = None
        for name, some in texts.items():
            pieces, spans = self._encode(name, some)
            if len(pieces) > 1 and pieces[1][:1] == [BEGIN_ID]:  # BERT's row has one begin token
                pieces[1:], spans = [row[1:] for row in pieces[1:]], spans[1:]
            if not all(map(_has_text, pieces)):
                return None
            if len(pieces) > 1:
                pieces[1] = [*between_of(self._artefact.tokenizer), *pieces[1]]
            if name == signature.TARGET_IDS:
                ids = [BEGIN_ID, *itertools.chain(*pieces)]
            else:
                ids = [token for row in pieces for token in (*row, END_ID)]
            inputs[name] = _check_row(ids, self._limits[name])
            if self._segments:
                counts = (len(row) + 1 for row in pieces)
                segments = ([number] * count for number, count in enumerate(counts, 1))
                inputs[signature.SEGMENT_IDS] = list(itertools.chain(*segments))
            if self._answers:  # the last input's last text
                end = len(ids) - 1
                passage = Passage(some[-1], spans, slice(end - len(spans), end))
        return self._row(inputs, len(ids), passage=passage)

    def _encode(self, name: str, texts: list[str]) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """Returns the ids of each text and, to mark an answer, the token spans of the last."""
        tokenizer = self._artefact.tokenizer
        if name == signature.TARGET_IDS:
            tokenizer = self._artefact.target_tokenizer
        if not self._answers:
            return [tokenizer.encode(text) for text in texts], []
        ids, spans = tokenizer.encode_with_spans(texts[-1])
        return [*(tokenizer.encode(text) for text in texts[:-1]), ids], spans


class WordReader(ItemReader):
    """Reads a list of words, or a line that is split at white space.

    Args:
        artefact: Artefact of a forward pass that has a tokenizer and one input of ids.
        padded: bool, whether rows of ids share a batch with padding.
    """

    def __init__(self, artefact: Artefact, padded: bool):
        super().__init__(padded)
        (value,) = artefact.manifest["inputs"]
        self._tokenizer, self._name = artefact.tokenizer, value["name"]
        self._limit = _row_limit(artefact, value)

    def read_item(self, item: Any) -> Row | None:
        words = text_of(item).split() if isinstance(item, (str, bytes)) else _strings(item)
        if not words:
            return None
        ids, first_pieces = encode_words(self._tokenizer, words)
        ids = _check_row([*ids, END_ID], self._limit)
        return self._row({self._name: ids}, len(ids), words=tuple(words), first_pieces=first_pieces)


def _has_text(tokens: Sequence[int]) -> bool:
    """Returns whether a text has a token besides the begin token that BERT's tokenizer adds."""
    return any(token != BEGIN_ID for token in tokens)


def _row_limit(artefact: Artefact, value: dict[str, Any]) -> int:
    """Returns the maximum number of ids in a row of an input, by its manifest entry."""
    most, size = artefact.manifest["limits"]["source_length"], value["axes"][-1]
    return min(most, size) if isinstance(size, int) else most


def _check_row(ids: list[int], most: int) -> list[int]:
    """Returns the ids; raises `ValueError` if there are too many, or if one is padding."""
    if len(ids) > most:
        raise ValueError(
            f"{len(ids)} tokens, special ones included, where this artefact takes at most {most}; "
            "split or shorten it"
        )
    if PAD_ID in ids:
        raise ValueError("the text contains the token of padding")
    return ids


def _texts(item: Any, counts: Sequence[int]) -> list[str]:
    """Returns the texts of an item, in one of the `counts`. A TAB separates two in a line."""
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


def _strings(item: Any) -> list[str]:
    """Returns the strings of a list or tuple; raises `TypeError` for anything else."""
    if not isinstance(item, (list, tuple)) or not all(isinstance(t, (str, bytes)) for t in item):
        raise TypeError(
            "An input must be a string, or a list or tuple of strings if the model reads words or "
            f"two texts, got {shorten(item)}."
        )
    return [text_of(text) for text in item]
