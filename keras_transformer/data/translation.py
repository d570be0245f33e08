"""Batches of parallel text.

Shapes: B batch, S source length, T target length.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, make_dataset
from keras_transformer.data.examples import Examples, are_blank, text_rows
from keras_transformer.data.plan import BatchOptions
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID
from keras_transformer.text.corpora import read_parallel
from keras_transformer.text.json_tokenizer import AnyTokenizer
from keras_transformer.types import Array, Ids, StrPath


def translation_batches(
    source: StrPath | Iterable[str],
    target: StrPath | Iterable[str],
    tokenizer: AnyTokenizer,
    tokens_per_batch: int = 8192,
    *,
    target_tokenizer: AnyTokenizer | None = None,
    sampling_alpha: float | None = None,
    undo_bpe: bool = False,
    **options: Any,
) -> Dataset:
    """Makes padded batches from parallel text, for `model.fit`.

    Each batch is `({"source_ids": (B, S), "target_ids": (B, T)}, labels (B, T))`, all int32 and
    padded with 0. Each source ends with the end token. Each row of `target_ids` starts with the
    begin token; the same row of `labels` lacks it and ends with the end token, so that position i
    learns token i + 1 (teacher forcing, section 3.1 of the paper).

    Text is tokenised once; its ids stay in memory. Pairs with an empty side and over-long pairs
    are left out. `batches.report` counts them, and duplicates. It is logged once: as a warning if
    pairs were left out, else as information. Under `tf.distribute` a batch is a global batch, which
    `fit` splits between the replicas.

    Args:
        source, target: str or path-like, files of one sentence a line, plain or gzip; or sequences
            of strings.
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of source and of target tokens of a batch, padding included.
        target_tokenizer: `Tokenizer` of the target, for a model with `target_vocab_size`. Defaults
            to `None`: `tokenizer` for both.
        sampling_alpha: float or `None`. If given, each epoch draws a segmentation of each sentence
            by `tokenizer.encode(..., sample=True, alpha=sampling_alpha)`. The best segmentation
            replaces a drawn one that is longer than all limits. Lengths then differ from epoch to
            epoch, but not the number of batches; where it is too small for an epoch (rare), some
            of its batches exceed `tokens_per_batch` a little. A segmentation depends on (seed,
            epoch, number of the pair, text) only, so all processes of a training, and a run that
            resumes, draw the same.
        undo_bpe: bool, whether to join what subword-nmt has cut (`"@@ "`) before tokenising.
        **options: other fields of `BatchOptions`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        TypeError: if `source` or `target` is neither path nor sequence of strings.
        ValueError: if files are not UTF-8 or differ in length, if no pair is left, or if
            an argument is out of its range.

    Example:

    >>> tokenizer = Tokenizer.train(["a cat", "eine Katze"], 300, hard_vocab_limit=False)
    >>> train = translation_batches(["a cat"], ["eine Katze"], tokenizer)
    >>> (inputs, labels), = train
    """
    batch_options = BatchOptions(tokens_per_batch, **options)
    sources, targets = read_parallel(source, target, undo_bpe)
    columns = {
        "source": text_rows(tokenizer, sources, sampling_alpha),
        "target": text_rows(target_tokenizer or tokenizer, targets, sampling_alpha),
    }
    empty = are_blank(sources) | are_blank(targets)
    return make_dataset(Examples("pair", columns, empty, _collate), batch_options)


def _collate(
    examples: Examples, indices: Ids, size: int, length: int | None
) -> tuple[dict[str, Ids], Ids]:
    sources, targets = examples.take(indices)
    target_ids, labels = shift_targets(targets, size, length)
    return {"source_ids": pad_rows(sources, size, length), "target_ids": target_ids}, labels


def shift_targets(rows: list[Array], size: int, length: int | None) -> tuple[Ids, Ids]:
    """Makes target ids and labels, (B, T): position i of a row learns its token i + 1.

    Args:
        rows: list of ids, each with its end token.
        size, length: B and T; T may be `None`.
    """
    starts = [np.concatenate([[BEGIN_ID], row[:-1]]) for row in rows]
    return pad_rows(starts, size, length), pad_rows(rows, size, length)
