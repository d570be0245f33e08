"""Which examples make up which batch, in NumPy: a function of (seed, epoch, number of the batch).

Shapes: B batch, N examples of the data set.

Examples of any kind are an object with `lengths`, (N,), and `batch(rows, size, length)`: the arrays
of the examples `rows`, with B = `size`, missing rows all padding, and their sequences padded to
`length`, or to the longest one if `length` is None.
"""

from dataclasses import dataclass

import numpy as np

# A bucket holds at least so many full batches. Fewer mean less padding, but less mixing too.
_FULL_BATCHES = 8


class Ragged:
    """Rows of ids, or of other equal things, of different length in one array."""

    def __init__(self, rows):
        self.lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))  # (N,)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self._flat = np.concatenate([np.asarray(row, _dtype(row)) for row in rows])

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, row):
        return self._flat[self._starts[row] : self._starts[row + 1]]

    def take(self, rows):
        """A list of some rows."""
        return [self[row] for row in rows]


def _dtype(row):
    return np.float32 if getattr(row, "dtype", np.dtype(int)).kind == "f" else np.int32


@dataclass(frozen=True)
class Batching:
    """How examples are batched: arguments that all kinds of examples share.

    See `translation_batches` for what they mean.

    Raises:
        ValueError: an argument does not fit.
    """

    tokens_per_batch: int = 8192
    max_length: int | None = 256
    shuffle: bool = True
    seed: int = 0
    initial_epoch: int = 0
    bucket_boundaries: object = None
    static_shapes: bool = False
    batch_multiple: int = 1
    prefetch: int = 2

    def __post_init__(self):
        for name in ("tokens_per_batch", "batch_multiple", "prefetch"):
            check_count(name, getattr(self, name))
        boundaries = self.bucket_boundaries
        if boundaries is None:
            return
        if not len(boundaries) or boundaries[0] < 1 or np.any(np.diff(boundaries) <= 0):
            raise ValueError(
                "bucket_boundaries must be increasing positive ints such as [16, 32, 64], got "
                f"{boundaries!r}."
            )

    @property
    def longest(self):
        """Greatest length of an example that a batch can hold."""
        limits = [self.tokens_per_batch // self.batch_multiple]
        if self.bucket_boundaries is not None:
            limits.append(self.bucket_boundaries[-1])
        if self.max_length is not None:
            limits.append(self.max_length)
        return int(min(limits))

    @property
    def has_padding_rows(self):
        """Whether batches may hold rows that are no example."""
        return self.static_shapes or self.batch_multiple > 1


def check_count(name, count):
    """Raises `ValueError` unless the argument `name` is an int of at least 1."""
    if not isinstance(count, (int, np.integer)) or count < 1:
        raise ValueError(f"{name} must be an int of at least 1, got {count!r}.")


class TokenBatches:
    """Batches of similar length by token count, each example once an epoch (section 5.1).

    Examples are grouped into buckets by length; each epoch shuffles every bucket, cuts it into
    batches of near-equal size and shuffles the batches. Every epoch has the same number of batches.

    Args:
        examples: N examples; see above.
        batching: `Batching`.
        resample: function of an epoch and the greatest length that its examples may have, to
            examples that take the place of `examples` in that epoch; or None.

    Raises:
        ValueError: if an example is longer than `batching.longest`.
    """

    def __init__(self, examples, batching, resample=None):
        self._examples = examples
        self._tokens = batching.tokens_per_batch
        self._multiple = batching.batch_multiple
        self._static = batching.static_shapes
        self._shuffle = batching.shuffle
        self._seed = batching.seed
        self.settings = {
            name: int(getattr(batching, name))
            for name in ("tokens_per_batch", "batch_multiple", "shuffle", "seed")
        }
        self._resample = resample
        self._longest = batching.longest
        lengths = examples.lengths
        if lengths.max() > self._longest:
            raise ValueError(
                f"example {lengths.argmax()} has {lengths.max()} tokens, special ones included, "
                f"but a batch takes {self._longest} at most. Leave it out, or raise the limit (the "
                "smallest of max_length, tokens_per_batch // batch_multiple, last boundary)."
            )
        drawn = self._epoch_examples(0).lengths
        if batching.bucket_boundaries is None:
            self._boundaries = _boundaries(drawn, self._batch_size)
        else:
            self._boundaries = np.unique(np.minimum(batching.bucket_boundaries, self._longest))
        # Samples have other lengths in each epoch. The last bucket takes the longest of them.
        self._longest = max(self._boundaries[-1], lengths.max())
        self._boundaries[-1] = self._longest
        buckets = self._buckets(drawn)
        counts = self._batch_counts(buckets)
        # One more batch a bucket, so that an epoch with longer samples needs no larger batches.
        spare = 0 if np.array_equal(drawn, lengths) else len(counts)
        most = sum(self._most_batches(buckets))
        self.batches_per_epoch = min(sum(counts) + spare, most)

    def iterate(self, epoch, batch=0):
        """Yields an epoch's batches, as arrays, from number `batch` on.

        Batches passed over are not built.
        """
        examples = self._epoch_examples(epoch)
        for rows, length in self._order(epoch, examples.lengths)[batch:]:
            size = -(-len(rows) // self._multiple) * self._multiple  # B
            if self._static:
                yield examples.batch(rows, max(size, self._batch_size(length)), length)
            else:
                yield examples.batch(rows, size, None)

    def shapes(self):
        """A batch of one example: the structure of all batches, and their dtypes."""
        return self._examples.batch(np.zeros(1, int), 1, None)

    def _batch_size(self, length):
        """B of a full batch of examples of this length."""
        return int(self._tokens // length // self._multiple * self._multiple)

    def _buckets(self, lengths):
        """The buckets that are not empty: a list of (indices of examples, greatest length)."""
        numbers = np.searchsorted(self._boundaries, lengths)
        buckets = [(np.flatnonzero(numbers == i), int(b)) for i, b in enumerate(self._boundaries)]
        return [(rows, length) for rows, length in buckets if len(rows)]

    def _batch_counts(self, buckets):
        """How many batches each bucket needs."""
        return [-(-len(rows) // self._batch_size(length)) for rows, length in buckets]

    def _most_batches(self, buckets):
        """How many batches each bucket can give: `batch_multiple` examples stay together."""
        return [-(-len(rows) // self._multiple) for rows, _ in buckets]

    def _order(self, epoch, lengths):
        rng = np.random.default_rng([self._seed, epoch])
        buckets = self._buckets(lengths)
        most = self._most_batches(buckets)
        counts = _apportioned(self._batch_counts(buckets), most, self.batches_per_epoch)
        order = []
        for (rows, length), multiples, count in zip(buckets, most, counts, strict=True):
            if self._shuffle:
                rows = rng.permutation(rows)
            else:
                rows = rows[np.argsort(lengths[rows], kind="stable")]
            # Batches of nearly equal size, not full ones and a small rest; cut at multiples only.
            cuts = np.arange(1, count) * multiples // count * self._multiple
            order += [(part, length) for part in np.split(rows, cuts)]
        return [order[i] for i in rng.permutation(len(order))] if self._shuffle else order

    def _epoch_examples(self, epoch):
        if self._resample is None:
            return self._examples
        return self._resample(epoch, self._longest)


def _boundaries(lengths, batch_size):
    """Greatest lengths of the buckets, each of which holds `_FULL_BATCHES` batches if it can.

    Buckets are narrow where examples are many (little padding) and wide where they are few (no tiny
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
