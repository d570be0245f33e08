"""Which pairs make up which batch, in NumPy: a function of (seed, epoch, number of the batch).

Shapes: B batch, S source length, T target length, N pairs of the corpus.

The length of a pair is that of its longer side, with its begin or end token.
"""

import numpy as np

from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID

# A bucket holds at least so many full batches. Fewer mean less padding, but less mixing too.
_FULL_BATCHES = 8
_BEGIN, _END = np.array([[BEGIN_ID], [END_ID]], np.int32)


class Ragged:
    """Rows of ids of different length in one array."""

    def __init__(self, rows):
        self.lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))  # (N,)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self._flat = np.concatenate([np.zeros(0, np.int32), *rows]).astype(np.int32)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, row):
        return self._flat[self._starts[row] : self._starts[row + 1]]


class TokenBatches:
    """Batches of similar length by token count, each pair once an epoch (section 5.1).

    Pairs are grouped into buckets by length; each epoch shuffles every bucket, cuts it into batches
    of near-equal size and shuffles the batches. Every epoch has the same number of batches.

    Args:
        source, target: `Ragged`, N rows each, without begin and end tokens.
        tokens_per_batch: int, limit of `B * S` and of `B * T`.
        max_length, bucket_boundaries, static_shapes, batch_multiple, shuffle, seed: see
            `translation_batches`.
        resample: function from epoch to a new (source, target), or None.

    Raises:
        ValueError: if a pair is longer than `length_limit` allows.
    """

    def __init__(
        self,
        source,
        target,
        tokens_per_batch,
        *,
        max_length=None,
        bucket_boundaries=None,
        static_shapes=False,
        batch_multiple=1,
        shuffle=True,
        seed=0,
        resample=None,
    ):
        self._ids = source, target
        self._tokens = tokens_per_batch
        self._multiple = batch_multiple
        self._static = static_shapes
        self._shuffle = shuffle
        self._seed = seed
        self._resample = resample
        self._longest = length_limit(
            tokens_per_batch, batch_multiple, bucket_boundaries, max_length
        )
        lengths = _pair_lengths(self._ids)
        if lengths.max() > self._longest:
            raise ValueError(
                f"pair {lengths.argmax()} has {lengths.max()} tokens, with its begin or end token, "
                f"but a batch takes {self._longest} at most. Leave it out, or raise the limit (the "
                "smallest of max_length, tokens_per_batch // batch_multiple, last boundary)."
            )
        drawn = _pair_lengths(self._epoch_ids(0))
        if bucket_boundaries is None:
            self._boundaries = _boundaries(drawn, self._batch_size)
        else:
            self._boundaries = np.unique(np.minimum(bucket_boundaries, self._longest))
        # Samples have other lengths in each epoch. The last bucket takes the longest of them.
        self._longest = max(self._boundaries[-1], lengths.max())
        self._boundaries[-1] = self._longest
        buckets = self._buckets(drawn)
        counts = self._batch_counts(buckets)
        # One more batch a bucket, so that an epoch with longer samples needs no larger batches.
        spare = len(counts) if resample else 0
        most = sum(self._most_batches(buckets))
        self.batches_per_epoch = min(sum(counts) + spare, most)

    def order(self, epoch):
        """The batches of an epoch: a list of (indices of pairs, greatest length of the bucket)."""
        return self._order(epoch, _pair_lengths(self._epoch_ids(epoch)))

    def iterate(self, epoch, batch=0):
        """Yields an epoch's `({"source_ids", "target_ids"}, labels)` arrays, from a batch on.

        Batches passed over are not built.
        """
        ids = self._epoch_ids(epoch)
        for pairs, length in self._order(epoch, _pair_lengths(ids))[batch:]:
            yield self._batch(ids, pairs, length)

    def _batch_size(self, length):
        """B of a full batch of pairs of this length."""
        return int(self._tokens // length // self._multiple * self._multiple)

    def _buckets(self, lengths):
        """The buckets that are not empty: a list of (indices of pairs, greatest length)."""
        numbers = np.searchsorted(self._boundaries, lengths)
        buckets = [(np.flatnonzero(numbers == i), int(b)) for i, b in enumerate(self._boundaries)]
        return [(pairs, length) for pairs, length in buckets if len(pairs)]

    def _batch_counts(self, buckets):
        """How many batches each bucket needs."""
        return [-(-len(pairs) // self._batch_size(length)) for pairs, length in buckets]

    def _most_batches(self, buckets):
        """How many batches each bucket can give: `batch_multiple` pairs stay together."""
        return [-(-len(pairs) // self._multiple) for pairs, _ in buckets]

    def _order(self, epoch, lengths):
        rng = np.random.default_rng([self._seed, epoch])
        buckets = self._buckets(lengths)
        most = self._most_batches(buckets)
        counts = _apportioned(self._batch_counts(buckets), most, self.batches_per_epoch)
        order = []
        for (pairs, length), multiples, count in zip(buckets, most, counts, strict=True):
            if self._shuffle:
                pairs = rng.permutation(pairs)
            else:
                pairs = pairs[np.argsort(lengths[pairs], kind="stable")]
            # Batches of nearly equal size, not full ones and a small rest; cut at multiples only.
            cuts = np.arange(1, count) * multiples // count * self._multiple
            order += [(part, length) for part in np.split(pairs, cuts)]
        return [order[i] for i in rng.permutation(len(order))] if self._shuffle else order

    def _epoch_ids(self, epoch):
        """(source, target) of an epoch. A sample that is too long becomes the best segmentation."""
        if self._resample is None:
            return self._ids
        fitting = []
        for best, drawn in zip(self._ids, self._resample(epoch), strict=True):
            fits = drawn.lengths < self._longest
            fitting.append(Ragged([(drawn if fits[i] else best)[i] for i in range(len(best))]))
        return tuple(fitting)

    def _batch(self, ids, pairs, length):
        size = -(-len(pairs) // self._multiple) * self._multiple  # B
        shape = (size, None)
        if self._static:
            shape = (max(size, self._batch_size(length)), length)
        rows = [[side[i] for i in pairs] for side in ids]
        sources, labels = ([np.concatenate([row, _END]) for row in side] for side in rows)
        starts = [np.concatenate([_BEGIN, row]) for row in rows[1]]
        inputs = {
            "source_ids": pad_rows(sources, *shape),  # (B, S)
            "target_ids": pad_rows(starts, *shape),  # (B, T)
        }
        return inputs, pad_rows(labels, *shape)  # (B, T)


def length_limit(tokens_per_batch, batch_multiple=1, bucket_boundaries=None, max_length=None):
    """Greatest length of a pair that a batch can hold."""
    limits = [tokens_per_batch // batch_multiple]
    if bucket_boundaries is not None:
        limits.append(bucket_boundaries[-1])
    if max_length is not None:
        limits.append(max_length)
    return int(min(limits))


def _pair_lengths(ids):
    return np.maximum(ids[0].lengths, ids[1].lengths) + 1  # (N,)


def _boundaries(lengths, batch_size):
    """Greatest lengths of the buckets, each of which holds `_FULL_BATCHES` batches if it can.

    Buckets are narrow where pairs are many (little padding) and wide where they are few (no tiny
    batches). `batch_size` is a function of the length.
    """
    counts = np.bincount(lengths)
    boundaries, held = [], 0
    for length in np.flatnonzero(counts):
        held += counts[length]
        if held >= _FULL_BATCHES * batch_size(length):
            boundaries.append(length)
            held = 0
    return np.unique([*boundaries, lengths.max()])


def _apportioned(counts, most, total):
    """Batches of each bucket, changed so that they add up to `total`.

    More go to the bucket whose batches are fullest, but never above `most`; fewer to the one whose
    batches are emptiest, but never below 1.
    """
    counts, most = np.array(counts), np.array(most)
    while counts.sum() < total:
        counts[np.argmax(np.where(counts < most, most / counts, 0))] += 1
    while counts.sum() > total:
        counts[np.argmin(np.where(counts > 1, most / counts, np.inf))] -= 1
    return counts
