"""Batches of parallel text.

Shapes: B batch, S source length, T target length.
"""

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, make_dataset
from keras_transformer.data.examples import (
    Examples,
    Padded,
    are_blank,
    begun,
    check_counts_agree,
    text_rows,
)
from keras_transformer.data.plan import BatchOptions
from keras_transformer.special_ids import PAD_ID
from keras_transformer.text.corpora import read_parallel
from keras_transformer.text.glossary import Glossary, annotated_sources
from keras_transformer.text.vocabularies import check_tokenizer
from keras_transformer.text.words import PieceWords, piece_weights, read_alignments
from keras_transformer.types import AnyTokenizer, Array, Ids, StrPath


def translation_batches(
    source: StrPath | Iterable[str],
    target: StrPath | Iterable[str],
    tokenizer: AnyTokenizer,
    tokens_per_batch: int = 8192,
    *,
    target_tokenizer: AnyTokenizer | None = None,
    sampling_alpha: float | None = None,
    undo_bpe: bool = False,
    alignments: StrPath | Iterable[str] | None = None,
    glossary: Glossary | StrPath | None = None,
    **options: Any,
) -> Dataset:
    """Makes padded batches from parallel text, for `model.fit`.

    Each batch is `({"source_ids": (B, S), "target_ids": (B, T)}, labels (B, T))`, all int32 and
    padded with 0. Each source ends with the end token. Each row of `target_ids` starts with the
    begin token; the same row of `labels` lacks it and ends with the end token, so position i
    predicts token i + 1 (teacher forcing, section 3.1 of the paper).

    Text is tokenised once; its ids stay in memory. Pairs with an empty side and over-long pairs
    are left out. `batches.report` counts them, and duplicates. It is logged once: as a warning if
    pairs were left out, else as information. Under `tf.distribute` a batch is a global batch, which
    `fit` splits between the replicas.

    Args:
        source, target: str or path-like, files of one sentence per line, plain or gzip; or
            sequences of strings.
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of source and of target tokens of a batch, padding included.
        target_tokenizer: `Tokenizer` of the target, for a model with `target_vocab_size`. Defaults
            to `None`: `tokenizer` for both.
        sampling_alpha: float or `None`. If given, each epoch draws a segmentation of each sentence
            by `tokenizer.encode(..., sample=True, alpha=sampling_alpha)`. The best segmentation
            replaces a drawn one that is too long. Lengths then differ between epochs, but the
            number of batches does not; if it is too small for an epoch (rare), some of its batches
            exceed `tokens_per_batch` a little. A segmentation depends only on (seed, epoch, number
            of the pair, text), so all processes and resumed runs draw the same.
        undo_bpe: bool, whether to join pieces of subword-nmt (`"@@ "`) before tokenising.
        alignments: str or path-like, a file in Pharaoh format with one line per pair, such as
            `0-0 1-2` (source word, target word); or such lines. Words are separated by spaces.
            Labels are then `{"logits": (B, T), "alignments": float32 (B, T, S)}`, for
            `with_alignments`. Defaults to `None`.
        glossary: `Glossary`, or the path of a .tsv file. `Glossary.annotated` adds target
            phrases to the sources of pairs that contain the source phrase and the target phrase
            (Dinu et al. 2019, arXiv 1906.01105). The model learns to use them; also train on pairs
            without annotations. Annotate the sources of a translation in the same way. Defaults to
            `None`.
        **options: other fields of `BatchOptions`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        TypeError: if `source` or `target` is neither path nor sequence of strings.
        ValueError: if files are not UTF-8 or differ in length, if no pair is left, if an alignment
            names a word that its sentence lacks, if an argument is out of its range, if both
            `alignments` and `glossary` were passed, or if `tokenizer` has no pieces for the marks
            of annotations.

    Example:

    >>> tokenizer = Tokenizer.train(["a cat", "eine Katze"], 300, hard_vocab_limit=False)
    >>> train = translation_batches(["a cat"], ["eine Katze"], tokenizer)
    >>> (inputs, labels), = train
    """
    tokenizers = tokenizer, target_tokenizer or tokenizer
    for each in tokenizers:
        check_tokenizer(each)
    batch_options = BatchOptions(tokens_per_batch, **options)
    sources, targets = read_parallel(source, target, undo_bpe)
    if glossary is not None:
        if alignments is not None:
            raise ValueError(
                "Annotations would move the words that `alignments` count. Pass `glossary` or "
                "`alignments`, not both."
            )
        sources = annotated_sources(sources, targets, glossary, tokenizer)
    columns = {
        name: text_rows(each, lines, sampling_alpha)
        for name, each, lines in zip(
            ("source", "target"), tokenizers, (sources, targets), strict=True
        )
    }
    empty = are_blank(sources) | are_blank(targets)
    inputs = {"source_ids": Padded("source"), "target_ids": Padded("target", begun)}
    examples = Examples("pair", columns, empty, inputs, Padded("target"))
    if alignments is not None:
        words = [PieceWords(each) for each in tokenizers]
        rows = [
            each.encode(lines) for each, lines in zip(tokenizers, (sources, targets), strict=True)
        ]
        counts = [each.counts(ids) for each, ids in zip(words, rows, strict=True)]
        labels = _alignments(alignments, *counts)
        targets = {"logits": Padded("target"), "alignments": functools.partial(_aligned, words)}
        examples = replace(examples, labels=labels, targets=targets)
    return make_dataset(examples, batch_options, dict(zip(columns, tokenizers, strict=True)))


def _alignments(alignments: StrPath | Iterable[str], *sides: list[int]) -> Array:
    """Returns the pairs (n, 2) of each of N lines, an array of objects (N,).

    Args:
        alignments: N lines.
        *sides: numbers of words of the N sources, and of the N targets.
    """
    found = read_alignments(alignments)
    check_counts_agree(pairs=sides[0], alignments=found)
    rows = np.empty(len(found), object)
    for number, (pairs, *counts) in enumerate(zip(found, *sides, strict=True)):
        rows[number] = np.array(pairs, int).reshape(-1, 2)
        if (rows[number] >= counts).any():
            raise ValueError(
                f"alignments, line {number + 1}: the words of a pair are out of range: the "
                f"source has {counts[0]} words and the target {counts[1]}. Words are counted from "
                "0, and separated by spaces. Replace tabs and no-break spaces by spaces."
            )
    return rows


def _aligned(
    words: list[PieceWords], examples: Examples, indices: Ids, size: int, length: int | None
) -> Array:
    """A field with alignments of pieces, (B, T, S): -1 in padded rows, 0 for the end token."""
    source_ids, labels = (
        Padded(name)(examples, indices, size, length) for name in ("source", "target")
    )
    weights = np.zeros((*labels.shape, source_ids.shape[1]), np.float32)
    weights[labels == PAD_ID] = -1
    for row, index, *ids in zip(weights, indices, *examples.take(indices), strict=False):
        numbers = [each.numbers(part[:-1]) for each, part in zip(words, ids, strict=True)]
        given = piece_weights(examples.labels[index], *numbers)
        row[: given.shape[0], : given.shape[1]] = given
    return weights
