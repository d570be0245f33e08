"""Parallel text as a `tf.data.Dataset` of training batches.

Shapes: B batch, S source length, T target length.
"""

from dataclasses import dataclass

import numpy as np

from keras_transformer.data.batches import Batching, Ragged
from keras_transformer.data.dataset import choose, make_dataset
from keras_transformer.data.encoding import encode_rows, fitting, lengths_of, sample_rng
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID
from keras_transformer.text.corpora import read_parallel


def translation_batches(
    source,
    target,
    tokenizer,
    tokens_per_batch=8192,
    *,
    target_tokenizer=None,
    max_length=256,
    shuffle=True,
    seed=0,
    initial_epoch=0,
    sampling_alpha=None,
    bucket_boundaries=None,
    static_shapes=False,
    batch_multiple=1,
    undo_bpe=False,
    prefetch=2,
):
    """Makes a `tf.data.Dataset` of padded batches from parallel text, for `model.fit`.

    Each element is `({"source_ids": (B, S), "target_ids": (B, T)}, labels (B, T))`, all int32 and
    padded with 0. Each source ends with the end token. Each row of `target_ids` starts with the
    begin token; the same row of `labels` lacks it and ends with the end token, so that position i
    learns token i + 1 (teacher forcing, section 3.1 of the paper).

    Pairs of similar length come together (section 5.1). Neither `B * S` nor `B * T`, padding
    included, exceeds `tokens_per_batch`: the paper's "25,000 source and 25,000 target tokens" is
    `tokens_per_batch=25000`. Text is tokenised once; its ids stay in memory. Each pair that is kept
    comes exactly once an epoch. All epochs have the same number of batches, the cardinality of the
    dataset, so Keras shows progress and time left.

    The order depends on (seed, epoch) only. A pass over the dataset that reaches its last batch
    moves on to the next epoch. `dataset.batches`, a `Batches`, sets the epoch of the
    next pass (`seek`) and gives the batches that an interrupted run did not see (`rest`). `fit` may
    start passes that it never reads. This callback ties the order to the epochs of `fit`:

        keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: train.batches.seek(epoch))

    Empty lines, over-long pairs and duplicates are counted in `dataset.batches.report`, which is
    logged once: as a warning if pairs were left out, else as information.

    Keras warns of `fit`'s default `shuffle=True` for datasets of any kind: pass `shuffle=False`.
    Under `tf.distribute` the dataset holds global batches, which `fit` splits between replicas.

    Args:
        source, target: str or path-like, files of one sentence a line, plain or gzip; or sequences
            of strings.
        tokenizer: `Tokenizer`.
        target_tokenizer: `Tokenizer` of the target, for a model with `target_vocab_size`. Defaults
            to `None`: `tokenizer` for both.
        tokens_per_batch: int, limit of source and of target tokens of a batch, padding included.
        max_length: int or None. Pairs with more tokens on either side are left out; the begin or
            end token counts. `tokens_per_batch // batch_multiple` and the last bucket boundary are
            limits too.
        shuffle: bool. If False (validation), every epoch has the same order, short pairs first.
        seed: int, not negative.
        initial_epoch: int, epoch of the first pass.
        sampling_alpha: float or None. If given, each epoch segments all sentences anew by
            `tokenizer.encode(..., sample=True, alpha=sampling_alpha)`. The best segmentation
            replaces a sample that is longer than all limits. Lengths then differ from epoch to
            epoch. The number of batches does not; where it is too small for an epoch (rare), some
            of its batches exceed `tokens_per_batch` a little. A segmentation depends on (seed,
            epoch, number of the pair, text) only, so all processes of one training draw the same,
            and so does a run that resumes.
        bucket_boundaries: increasing ints or None, greatest lengths of the buckets that batches
            are drawn from. `None` takes them from the lengths that occur.
        static_shapes: bool. If True, all batches of a bucket have the same shape: its greatest
            length, and the batch size that this length allows. XLA then compiles few shapes.
            Missing rows are all padding.
        batch_multiple: int, the batch size is a multiple of this (number of replicas). Missing
            rows are all padding, which losses and metrics leave out.
        undo_bpe: bool, whether to join what subword-nmt has cut (`"@@ "`) before tokenising.
        prefetch: int, batches to hold ready.

    Returns:
        `tf.data.Dataset` with the attribute `batches`.

    Raises:
        TypeError: if `source` or `target` is neither path nor sequence of strings.
        ValueError: if files are not UTF-8 or differ in length, if no pair is left, or if
            an argument does not fit.

    Example:

    >>> tokenizer = Tokenizer.train(["a cat", "eine Katze"], 300, hard_vocab_limit=False)
    >>> train = translation_batches(["a cat"], ["eine Katze"], tokenizer)
    >>> (inputs, labels), = train
    """
    batching = Batching(
        tokens_per_batch,
        max_length=max_length,
        shuffle=shuffle,
        seed=seed,
        initial_epoch=initial_epoch,
        bucket_boundaries=bucket_boundaries,
        static_shapes=static_shapes,
        batch_multiple=batch_multiple,
        prefetch=prefetch,
    )
    tokenizers = tokenizer, target_tokenizer or tokenizer
    text = read_parallel(source, target, undo_bpe)
    rows = [encode_rows(by, side) for by, side in zip(tokenizers, text, strict=True)]
    pairs = list(zip(*text, strict=True))
    keep, counts = choose(
        "pair",
        np.maximum(*map(lengths_of, rows)),
        batching.longest,
        empty=[not all(side.strip() for side in pair) for pair in pairs],
        keys=pairs,
        if_empty="with an empty side",
    )
    text = [[side[i] for i in keep] for side in text]
    examples = Pairs(*(Ragged([side[i] for i in keep]) for side in rows))

    def resample(epoch, longest):
        rng = sample_rng(seed, epoch)
        sides = zip(tokenizers, text, (examples.source, examples.target), strict=True)
        return Pairs(
            *(
                fitting(encode_rows(by, lines, sampling_alpha, rng), best, longest)
                for by, lines, best in sides
            )
        )

    counts["tokens"] = {
        "source": int(examples.source.lengths.sum()),
        "target": int(examples.target.lengths.sum()),
    }
    resample = None if sampling_alpha is None else resample
    return make_dataset(examples, batching, counts, resample=resample)


@dataclass
class Pairs:
    """Sources and targets, each row with its end token."""

    source: Ragged
    target: Ragged

    @property
    def lengths(self):
        return np.maximum(self.source.lengths, self.target.lengths)

    def batch(self, rows, size, length):
        inputs, labels = shifted(self.target.take(rows), size, length)  # (B, T)
        sources = pad_rows(self.source.take(rows), size, length)  # (B, S)
        return {"source_ids": sources, "target_ids": inputs}, labels


def shifted(rows, size, length):
    """Target ids and labels, (B, T): position i of a row learns its token i + 1.

    Args:
        rows: list of ids, each with its end token.
        size, length: B and T, or None.
    """
    starts = [np.concatenate([[BEGIN_ID], row[:-1]]) for row in rows]
    return pad_rows(starts, size, length), pad_rows(rows, size, length)
