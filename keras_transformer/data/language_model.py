"""Batches of text for language models: documents, or windows of a long text.

Shapes: B batch, T target length, N windows or documents.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from keras_transformer.data.batches import Dataset, make_dataset
from keras_transformer.data.examples import (
    Examples,
    Padded,
    Rows,
    are_blank,
    begun,
    encode_rows,
    refuse_without,
    text_rows,
)
from keras_transformer.data.plan import BatchOptions, check_count
from keras_transformer.padding import pad_rows
from keras_transformer.text.corpora import checked_strings, read_lines, refuse_paths
from keras_transformer.text.vocabularies import check_tokenizer
from keras_transformer.types import AnyTokenizer, Ids, StrPath

_NOT_WITH_WINDOW = "max_length", "bucket_boundaries"


def language_model_batches(
    texts: StrPath | Sequence[str],
    tokenizer: AnyTokenizer,
    tokens_per_batch: int = 8192,
    *,
    window: int | None = None,
    begin: bool = True,
    sampling_alpha: float | None = None,
    **options: Any,
) -> Dataset:
    """Makes batches of text for `model.fit` of language models.

    Each batch is `(target_ids (B, T), labels (B, T))`, int32: the label at each position is the
    next token.

    Without `window` each row is one document: it starts with the begin token, its labels end with
    the end token, and both are padded with 0.

    With `window` the documents form one long text, with the end token after each of them. Each row
    is a window of this text, T = `window`. The windows follow each other. With `shuffle=True` each
    epoch shuffles the windows and draws the start of each anywhere before the next one. With
    `shuffle=False` they keep the order of the text and predict each token once; tokens at the end
    that fill no window are left out.

    Args:
        texts: str or path-like, a file, plain or gzip: one document per line, or with `window` one
            document, line ends included; or a sequence of strings, one document each.
        tokenizer: `Tokenizer`; one trained with `model_type="char"` gives characters.
        tokens_per_batch: int, limit of `B * T`.
        window: int, T, or `None`.
        begin: bool. If True, windows start with the begin token, as prompts do when the model
            generates, and their T labels are T tokens of the text. If False, they start within the
            text. Documents without `window` always have it.
        sampling_alpha: float or `None`. If given, each epoch draws other segmentations, as in
            `translation_batches`. Not with `window`.
        **options: other fields of `BatchOptions`; `max_length` and `bucket_boundaries` not with
            `window`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        TypeError: a document is not a string.
        ValueError: a file is not UTF-8, no document is left, the text has fewer tokens than a
            window, or an argument is out of its range.

    Example:

    >>> tokenizer = Tokenizer.train(["to be or not"], 300, model_type="char")
    >>> train = language_model_batches(["to be or not to be"], tokenizer, window=5)
    >>> train.batches.report.kept
    4
    """
    check_tokenizer(tokenizer)
    is_file = isinstance(texts, str | os.PathLike)
    if not is_file:
        texts = texts if isinstance(texts, bytes) else list(texts)
        refuse_paths(texts, "texts")
        texts = checked_strings(texts, "texts")
    if window is None:
        refuse_without("window", begin=None if begin else begin)
        batch_options = BatchOptions(tokens_per_batch, **options)
        lines = read_lines(texts) if is_file else texts
        columns = {"target": text_rows(tokenizer, lines, sampling_alpha)}
        empty = are_blank(lines)
        examples = Examples("document", columns, empty, Padded("target", begun), Padded("target"))
        return make_dataset(examples, batch_options, {"target": tokenizer})
    if sampling_alpha is not None or not options.keys().isdisjoint(_NOT_WITH_WINDOW):
        raise ValueError(
            f"sampling_alpha, {' and '.join(_NOT_WITH_WINDOW)} do not work with a window."
        )
    check_count("window", window)
    batch_options = BatchOptions(tokens_per_batch, window, **options)
    if batch_options.longest < window:
        raise ValueError(
            f"A window of {window} tokens does not fit into a batch: tokens_per_batch // "
            f"batch_multiple is {batch_options.longest}."
        )
    documents = ["\n".join(read_lines(texts)) + "\n"] if is_file else texts
    ids = Rows.of(encode_rows(tokenizer, documents)).values
    last = len(ids) - (window if begin else window + 1)
    if last < 0:
        raise ValueError(
            f"The text has {len(ids)} tokens, too few for a window of {window} (one more if "
            "begin=False). Choose a smaller window."
        )
    starts = np.arange(0, last + 1, window)
    lengths = np.full(len(starts), window)
    windows = _Windows(ids, starts, lengths, last=last, moves=batch_options.shuffle)
    fields = (Padded("target", begun), Padded("target")) if begin else (Padded("target"), _next_ids)
    examples = Examples("window", {"target": windows}, lengths == 0, *fields)
    return make_dataset(examples, batch_options, {"target": tokenizer})


@dataclass(frozen=True, eq=False)
class _Windows(Rows):
    """Windows of one text, all of one length.

    Args:
        last: greatest start of a window.
        moves: whether each epoch draws other starts.
    """

    last: int = 0
    moves: bool = False

    def drawn(self, rng: np.random.Generator, longest: int) -> Self:
        # One start in each window: an epoch covers every part of the text about equally often.
        latest = np.append(self.starts[1:], self.last + 1)
        return replace(self, starts=rng.integers(self.starts, latest)) if self.moves else self


def _next_ids(examples: Examples, indices: Ids, size: int, length: int | None) -> Ids:
    """A field with the token after each token of the windows, (B, T)."""
    windows = examples.columns["target"]
    return pad_rows(replace(windows, starts=windows.starts + 1).take(indices), size)
