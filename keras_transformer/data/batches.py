"""Which pairs make up which batch, in NumPy: a function of (seed, epoch, number of the batch).

Shapes: `N` pairs of the corpus, `B` rows of a batch, `S` source length, `T` target length.
A pair's length is that of its longer side, the begin or end mark included.
"""

import numpy as np

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID

_FULL_BATCHES = 8  # that a bucket holds at least: the fewer, the less padding and the less mixing


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
        source, target: `Ragged`, N rows each, without marks.
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
                f"pair {lengths.argmax()} has {lengths.max()} tokens, its mark included, but a "
                f"batch takes {self._longest} at most. Leave it out, or raise the limit (the "
                "smallest of max_length, tokens_per_batch // batch_multiple, last boundary)."
            )
        drawn = _pair_lengths(self._epoch_ids(0))
        if bucket_boundaries is None:
            self._boundaries = _boundaries(drawn, self._rows)
        else:
            self._boundaries = np.unique(np.minimum(bucket_boundaries, self._longest))
        # Samples have other lengths each epoch; no later one may be longer than the last bucket.
        self._longest = max(self._boundaries[-1], lengths.max())
        self._boundaries[-1] = self._longest
        members = self._members(drawn)
        counts = [-(-len(rows) // self._rows(b)) for rows, b in members]
        # One batch a bucket to spare, so that an epoch with longer samples needs no larger batches.
        spare = len(counts) if resample else 0
        self.batches_per_epoch = min(sum(counts) + spare, sum(self._units(members)))

    def order(self, epoch):
        """The batches of an epoch: a list of (indices of its pairs, bucket's greatest length)."""
        return self._order(epoch, _pair_lengths(self._epoch_ids(epoch)))

    def iterate(self, epoch, batch=0):
        """Yields an epoch's `({"source_ids", "target_ids"}, labels)` arrays, from a batch on.

        Batches passed over are not built.
        """
        ids = self._epoch_ids(epoch)
        for rows, length in self._order(epoch, _pair_lengths(ids))[batch:]:
            yield self._batch(ids, rows, length)

    def _rows(self, length):
        """Rows of a full batch of a bucket."""
        return int(self._tokens // length // self._multiple * self._multiple)

    def _members(self, lengths):
        """The filled buckets: a list of (indices of pairs, greatest length)."""
        buckets = np.searchsorted(self._boundaries, lengths)
        members = [(np.flatnonzero(buckets == i), int(b)) for i, b in enumerate(self._boundaries)]
        return [(rows, length) for rows, length in members if len(rows)]

    def _units(self, members):
        return [-(-len(rows) // self._multiple) for rows, _ in members]

    def _order(self, epoch, lengths):
        rng = np.random.default_rng([self._seed, epoch])
        members = self._members(lengths)
        units = self._units(members)
        counts = [-(-len(rows) // self._rows(b)) for rows, b in members]
        counts = _apportioned(counts, units, self.batches_per_epoch)
        order = []
        for (rows, length), unit, count in zip(members, units, counts, strict=True):
            if self._shuffle:
                rows = rng.permutation(rows)
            else:
                rows = rows[np.argsort(lengths[rows], kind="stable")]
            # Near-equal batches, not full ones and a small rest; cut at multiples only.
            cuts = np.arange(1, count) * unit // count * self._multiple
            order += [(part, length) for part in np.split(rows, cuts)]
        return [order[i] for i in rng.permutation(len(order))] if self._shuffle else order

    def _epoch_ids(self, epoch):
        """The epoch's (source, target); a sample that no bucket holds gives way to the best."""
        if self._resample is None:
            return self._ids
        fitting = []
        for best, drawn in zip(self._ids, self._resample(epoch), strict=True):
            fits = drawn.lengths < self._longest
            fitting.append(Ragged([(drawn if fits[i] else best)[i] for i in range(len(best))]))
        return tuple(fitting)

    def _batch(self, ids, members, length):
        rows = -(-len(members) // self._multiple) * self._multiple
        rows, width = (max(rows, self._rows(length)), length) if self._static else (rows, None)
        sources, targets = ([side[i] for i in members] for side in ids)
        inputs = {
            "source_ids": _padded(sources, rows, width, behind=[END_ID]),  # (B, S)
            "target_ids": _padded(targets, rows, width, before=[BEGIN_ID]),  # (B, T)
        }
        return inputs, _padded(targets, rows, width, behind=[END_ID])  # (B, T)


def length_limit(tokens_per_batch, batch_multiple=1, bucket_boundaries=None, max_length=None):
    """Greatest pair length, mark included, that a batch can hold."""
    limits = [tokens_per_batch // batch_multiple]
    if bucket_boundaries is not None:
        limits.append(bucket_boundaries[-1])
    if max_length is not None:
        limits.append(max_length)
    return int(min(limits))


def _pair_lengths(ids):
    return np.maximum(ids[0].lengths, ids[1].lengths) + 1  # (N,)


def _boundaries(lengths, rows_of):
    """Greatest lengths of the buckets, each of which holds `_FULL_BATCHES` batches if it can.

    Narrow where pairs are many (little padding), wide where they are few (no tiny batches).
    """
    counts = np.bincount(lengths)
    boundaries, held = [], 0
    for length in np.flatnonzero(counts):
        held += counts[length]
        if held >= _FULL_BATCHES * rows_of(length):
            boundaries.append(length)
            held = 0
    return np.unique([*boundaries, lengths.max()])


def _apportioned(counts, units, total):
    """Batches of each bucket so that they add up to `total`: adds where batches are fullest."""
    counts, units = np.array(counts), np.array(units)
    while counts.sum() < total:
        counts[np.argmax(np.where(counts < units, units / counts, 0))] += 1
    while counts.sum() > total:
        counts[np.argmin(np.where(counts > 1, units / counts, np.inf))] -= 1
    return counts


def _padded(rows, height, width, before=(), behind=()):
    """Rows with a mark before or behind each, in one int32 array filled up with padding."""
    marks = len(before) + len(behind)
    width = max(len(row) for row in rows) + marks if width is None else width
    batch = np.full((height, width), PAD_ID, np.int32)
    for i, row in enumerate(rows):
        batch[i, : len(row) + marks] = np.concatenate([before, row, behind])
    return batch
