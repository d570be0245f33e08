"""Batches for training: parallel text becomes padded ids, shuffled by (seed, epoch).

Shapes: `B` sentences of a batch, `S` source length, `T` target length, `N` pairs of the corpus.
"""

import logging
import threading
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_transformer.corpora import read_parallel
from keras_transformer.text import BEGIN_ID, END_ID, PAD_ID

_log = logging.getLogger(__name__)


def translation_batches(
    source,
    target,
    tokenizer,
    tokens_per_batch=8192,
    *,
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
    padded with 0: the source is its tokens and the end mark; `target_ids` is the begin mark and the
    tokens; `labels` is the tokens and the end mark, so that position i learns token i + 1 (teacher
    forcing, section 3.1 of the paper).

    Pairs of similar length come together (section 5.1). A batch holds `B` pairs such that neither
    `B * S` nor `B * T`, padding included, exceeds `tokens_per_batch`: the paper's "25,000 source
    and 25,000 target tokens" is `tokens_per_batch=25000`. Text is tokenised once and kept as ids
    in memory; every pair that is kept comes exactly once an epoch. The number of batches is the
    same in each epoch and is the dataset's cardinality, so Keras shows progress and time left.

    Order is a function of (seed, epoch) only. Each pass over the dataset that is read to its last
    batch moves on to the next epoch. `dataset.batches` is the `TranslationBatches` behind it: its
    `seek(epoch)` chooses the epoch of the next pass, its `rest(epoch, batch)` gives what a killed
    run had not seen. To tie epochs to those of `fit`, whatever happened before::

        keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: train.batches.seek(epoch))

    Empty lines, over-long pairs and duplicates are counted in `dataset.batches.report`, which is
    logged once (as a warning if pairs were left out).

    Under `tf.distribute` the dataset holds global batches, which `fit` splits between replicas.

    Args:
        source, target: str or path-like, files of one sentence a line, plain or gzip; or sequences
            of strings.
        tokenizer: `Tokenizer`.
        tokens_per_batch: int, limit of source and of target tokens of a batch, padding included.
        max_length: int or None, pairs with more tokens on either side (end mark included) are left
            out. No pair may be longer than `tokens_per_batch // batch_multiple`.
        shuffle: bool. If False, every epoch has the same order, short pairs first.
        seed: int.
        initial_epoch: int, epoch of the first pass.
        sampling_alpha: float or None. If given, sentences are segmented anew each epoch by
            `tokenizer.encode(..., sample=True, alpha=sampling_alpha)`. Batches are made by the
            lengths of the best segmentation; samples are somewhat longer. A sample longer than
            `max_length`, or with `static_shapes` than its bucket, gives way to the best one.
        bucket_boundaries: increasing ints or None, greatest lengths of the buckets out of which
            batches are drawn; None takes them from the lengths that occur.
        static_shapes: bool. If True, every batch of a bucket has one shape, (bucket's size, bucket's
            length): few compilations for XLA. Batches are filled up with rows of padding.
        batch_multiple: int, rows of every batch are a multiple of this (number of replicas): the
            few missing ones are rows of padding, which losses and metrics leave out.
        undo_bpe: bool, join what subword-nmt has cut (`"@@ "`) before tokenising.
        prefetch: int, batches to hold ready.

    Returns:
        `tf.data.Dataset` with the attribute `batches`.

    Raises:
        TypeError: if `source` or `target` is neither path nor sequence of strings.
        ValueError: if files are not UTF-8 or differ in length, if no pair is left, or if
            an argument does not fit.

    Example:

    >>> train = translation_batches(["a cat", "a dog"], ["eine Katze", "ein Hund"], tokenizer)
    >>> (inputs, labels), = train
    """
    batches = TranslationBatches(
        source,
        target,
        tokenizer,
        tokens_per_batch,
        max_length=max_length,
        shuffle=shuffle,
        seed=seed,
        sampling_alpha=sampling_alpha,
        bucket_boundaries=bucket_boundaries,
        static_shapes=static_shapes,
        batch_multiple=batch_multiple,
        undo_bpe=undo_bpe,
        prefetch=prefetch,
    )
    batches.seek(initial_epoch)
    report = batches.report
    _log.log(logging.WARNING if report.kept < report.read else logging.INFO, "%s", report)
    return batches.dataset()


@dataclass(frozen=True)
class TranslationReport:
    """What became of the pairs of a corpus. `read == kept + empty + overlong`; duplicates are kept."""

    read: int
    kept: int
    empty: int
    overlong: int
    duplicates: int
    max_length: int
    source_tokens: int
    target_tokens: int
    batches: int

    def __str__(self):
        return (
            f"{self.read} pairs read, {self.kept} kept ({self.duplicates} of them duplicates), left "
            f"out: {self.empty} with an empty side, {self.overlong} longer than {self.max_length} "
            f"tokens; {self.source_tokens} source and {self.target_tokens} target tokens in "
            f"{self.batches} batches an epoch"
        )


class TranslationBatches:
    """The NumPy side of `translation_batches`, whose arguments it takes: batches by (epoch, number).

    Attributes:
        report: `TranslationReport`.
        epoch: int, epoch that the next pass over `dataset()` gives.
        batches_per_epoch: int.
    """

    def __init__(
        self,
        source,
        target,
        tokenizer,
        tokens_per_batch=8192,
        *,
        max_length=256,
        shuffle=True,
        seed=0,
        sampling_alpha=None,
        bucket_boundaries=None,
        static_shapes=False,
        batch_multiple=1,
        undo_bpe=False,
        prefetch=2,
    ):
        limit = tokens_per_batch // batch_multiple
        self.max_length = limit if max_length is None else min(max_length, limit)
        self.tokenizer = tokenizer
        self.shuffle = shuffle
        self.seed = seed
        self.sampling_alpha = sampling_alpha
        self.static_shapes = static_shapes
        self.batch_multiple = batch_multiple
        self.prefetch = prefetch
        self._lock = threading.Lock()
        self._passes = 0
        self.epoch = 0

        sources, targets = read_parallel(source, target, undo_bpe)
        read = len(sources)
        full = [i for i in range(read) if sources[i].strip() and targets[i].strip()]
        sources, targets = [sources[i] for i in full], [targets[i] for i in full]
        encoded = _Ragged(tokenizer.encode(sources)), _Ragged(tokenizer.encode(targets))
        # Both sides gain one mark: the source its end, the target begin (input) or end (labels).
        fits = np.maximum(encoded[0].lengths, encoded[1].lengths) + 1 <= self.max_length
        keep = np.flatnonzero(fits)
        if not len(keep):
            raise ValueError(
                f"no pair is left of {read}: {read - len(full)} have an empty side, {len(full)} are "
                f"longer than {self.max_length} tokens (the smaller of max_length and "
                "tokens_per_batch // batch_multiple). Check the files, or raise these limits."
            )
        pairs = [(sources[i], targets[i]) for i in keep]
        self._text = ([s for s, _ in pairs], [t for _, t in pairs]) if sampling_alpha else None
        self._ids = encoded[0].take(keep), encoded[1].take(keep)  # N rows each
        self._lengths = np.stack([side.lengths + 1 for side in self._ids])  # (2, N)
        self._buckets = _buckets(
            self._lengths.max(0), tokens_per_batch, batch_multiple, bucket_boundaries
        )
        self.batches_per_epoch = sum(count for *_, count in self._buckets)
        self.report = TranslationReport(
            read=read,
            kept=len(keep),
            empty=read - len(full),
            overlong=len(full) - len(keep),
            duplicates=len(pairs) - len(set(pairs)),
            max_length=self.max_length,
            source_tokens=int(self._lengths[0].sum()),
            target_tokens=int(self._lengths[1].sum()),
            batches=self.batches_per_epoch,
        )

    def order(self, epoch):
        """The batches of an epoch: a list of (indices of pairs, bucket length, bucket size)."""
        rng = np.random.default_rng([self.seed, epoch])
        order = []
        for members, length, size, count in self._buckets:
            if self.shuffle:
                members = rng.permutation(members)
            # Batches of near-equal size, not full ones and a small rest.
            order += [(part, length, size) for part in np.array_split(members, count)]
        return [order[i] for i in rng.permutation(len(order))] if self.shuffle else order

    def iterate(self, epoch, batch=0):
        """Yields the NumPy batches of an epoch, from a batch on. Skipped ones cost nothing."""
        ids = self._sampled(epoch) if self.sampling_alpha else self._ids
        for members, length, size in self.order(epoch)[batch:]:
            yield self._padded(ids, members, length, size)

    def seek(self, epoch):
        """Makes the next pass over `dataset()` give this epoch."""
        with self._lock:
            self._passes += 1  # passes that have begun no longer move the epoch
            self.epoch = int(epoch)

    def dataset(self):
        """`tf.data.Dataset` whose passes give one epoch after the other, beginning with `epoch`."""
        dataset = self._from_generator(self._next_epoch, self.batches_per_epoch)
        dataset.batches = self
        return dataset

    def rest(self, epoch, batch):
        """`tf.data.Dataset` of one epoch's batches from a batch on, the same in each pass."""
        count = self.batches_per_epoch - batch
        return self._from_generator(lambda: self.iterate(epoch, batch), count)

    def _next_epoch(self):
        with self._lock:
            self._passes += 1
            own, epoch = self._passes, self.epoch
        for number, batch in enumerate(self.iterate(epoch), 1):
            if number == self.batches_per_epoch:
                # Before the last batch is handed out: `fit` never asks for more than it needs.
                with self._lock:
                    if own == self._passes:
                        self.epoch = epoch + 1
            yield batch

    def _from_generator(self, generator, count):
        ids = tf.TensorSpec([None, None], tf.int32)
        signature = ({"source_ids": ids, "target_ids": ids}, ids)
        dataset = tf.data.Dataset.from_generator(generator, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        options = tf.data.Options()
        # There are no files to shard by: several workers each take their rows of every batch.
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return dataset.with_options(options).prefetch(self.prefetch)

    def _sampled(self, epoch):
        """All pairs, segmented at random by (seed, epoch)."""
        seeds = np.random.default_rng([self.seed, epoch, 1]).integers(2**32, size=2)
        sides = []
        for lines, best, seed in zip(self._text, self._ids, seeds, strict=True):
            rows = self.tokenizer.encode(
                lines, sample=True, alpha=self.sampling_alpha, seed=int(seed)
            )
            limits = self._sample_limits()
            rows = [
                row if len(row) < limit else best[i]
                for i, (row, limit) in enumerate(zip(rows, limits, strict=True))
            ]
            sides.append(_Ragged(rows))
        return sides

    def _sample_limits(self):
        limits = np.full(self._lengths.shape[1], self.max_length)
        if self.static_shapes:
            for members, length, *_ in self._buckets:
                limits[members] = length
        return limits

    def _padded(self, ids, members, length, size):
        rows = size if self.static_shapes else -(-len(members) // self.batch_multiple)
        rows = rows if self.static_shapes else rows * self.batch_multiple
        width = length if self.static_shapes else None
        source = _padded(ids[0], members, rows, width, last=END_ID)
        target = _padded(ids[1], members, rows, width, first=BEGIN_ID)
        labels = _padded(ids[1], members, rows, width, last=END_ID)
        return {"source_ids": source, "target_ids": target}, labels


class _Ragged:
    """Rows of different length in one array: `flat` and where each row begins."""

    def __init__(self, rows):
        self.lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.flat = np.concatenate([*rows, []]).astype(np.int32)

    def __getitem__(self, row):
        return self.flat[self.starts[row] : self.starts[row + 1]]

    def take(self, rows):
        return _Ragged([self[row] for row in rows])


def _padded(ids, members, rows, width, first=None, last=None):
    """Rows `members` of `ids` in one array, padded with 0, with a mark before or behind each."""
    lengths = ids.lengths[members]
    width = int(lengths.max()) + 1 if width is None else width
    batch = np.full((rows, width), PAD_ID, np.int32)  # (B, S) or (B, T)
    for row, member in enumerate(members):
        begin = 0 if first is None else 1
        batch[row, begin : begin + lengths[row]] = ids[member]
        if first is None:
            batch[row, lengths[row]] = last
        else:
            batch[row, 0] = first
    return batch


def _buckets(lengths, tokens_per_batch, multiple, boundaries=None):
    """Groups pairs by length: a list of (members, greatest length, rows of a batch, batches).

    Without `boundaries` a bucket ends as soon as it holds eight batches: narrow where pairs are
    many (little padding), wide where they are few (no batches of two or three pairs).
    """

    def size(length):
        return int(tokens_per_batch // length // multiple * multiple)

    if boundaries is None:
        counts = np.bincount(lengths)
        boundaries, held = [], 0
        for length in np.flatnonzero(counts):
            held += counts[length]
            if held >= 8 * size(length):
                boundaries.append(length)
                held = 0
        boundaries.append(lengths.max())
    buckets, low = [], 0
    for high in sorted({int(b) for b in boundaries}):
        members = np.flatnonzero((lengths > low) & (lengths <= high))
        low = high
        if len(members):
            rows = size(high)
            buckets.append((members, high, rows, -(-len(members) // rows)))
    return buckets
