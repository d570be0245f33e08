"""The plan of all batches: a function of (seed, epoch, number of the batch), in NumPy.

Shapes: B batch, N examples of the data set.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.examples import Examples
from keras_transformer.types import Ids

# Minimum of full batches in a bucket. Fewer give less padding, but also less mixing.
_FULL_BATCHES = 8


@dataclass(frozen=True)
class BatchOptions:
    """Options of all functions that make batches, such as `translation_batches`.

    Pass them to such a function by name: `translation_batches(..., seed=3, max_length=None)`.

    A batch contains examples of similar length (section 5.1 of the paper). Each epoch contains
    every kept example exactly once. All epochs have the same number of batches.

    Args:
        tokens_per_batch: int, limit of B times the length of a row, padding included. If a batch
            has several arrays of rows, such as source and target, the limit holds for each of
            them: the paper's "25,000 source and 25,000 target tokens" is 25000. Defaults to 8192.
        max_length: int or `None`. Longer examples are left out; the begin or end token counts.
            `tokens_per_batch // batch_multiple` and the last bucket boundary are limits, too.
            Defaults to 256.
        shuffle: bool. If False (validation), every epoch has the same order, short examples first.
            Defaults to `True`.
        seed: int, not negative. The order of an epoch depends on the seed and the epoch only.
            Defaults to 0.
        bucket_boundaries: increasing ints, the greatest lengths of the buckets that batches are
            drawn from. Defaults to `None`: chosen for the lengths that occur.
        static_shapes: bool. If True, all batches of a bucket have the same shape: the greatest
            length of the bucket, and the batch size that this length allows. XLA then compiles few
            shapes. Missing rows consist of padding. Defaults to `False`.
        batch_multiple: int, the batch size is a multiple of this (number of replicas). Missing
            rows consist of padding, which losses and metrics of this package leave out. Defaults
            to 1.

    Raises:
        ValueError: an argument is out of its range.
    """

    tokens_per_batch: int = 8192
    max_length: int | None = 256
    shuffle: bool = True
    seed: int = 0
    bucket_boundaries: Sequence[int] | None = None
    static_shapes: bool = False
    batch_multiple: int = 1

    def __post_init__(self) -> None:
        for name in ("tokens_per_batch", "batch_multiple"):
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
    def longest(self) -> int:
        """Greatest length of an example that a batch can hold."""
        limits = [self.tokens_per_batch // self.batch_multiple]
        if self.bucket_boundaries is not None:
            limits.append(self.bucket_boundaries[-1])
        if self.max_length is not None:
            limits.append(self.max_length)
        return int(min(limits))


def check_count(name: str, count: object) -> None:
    """Raises `ValueError` unless the argument `name` is an int of at least 1."""
    if not isinstance(count, int | np.integer) or count < 1:
        raise ValueError(f"{name} must be an int of at least 1, got {count!r}.")


class _Bucket(NamedTuple):
    """Examples of similar length, which are batched together."""

    indices: Ids
    length: int  # greatest length of an example
    fewest: int  # batches, if all are full
    most: int  # batches, if each holds `batch_multiple` examples


class BatchPlan:
    """Plans batches of similar length by token count, each example once per epoch (section 5.1).

    Examples are grouped into buckets by length. Each epoch shuffles every bucket, cuts it into
    batches of near-equal size and shuffles the batches.

    Args:
        examples: N examples.
        options: `BatchOptions`.

    Attributes:
        batches_per_epoch: int, the same for every epoch.
        digest: str, differs for other examples, another order of them, or other buckets.

    Raises:
        ValueError: an example is longer than `options.longest`.
    """

    def __init__(self, examples: Examples, options: BatchOptions) -> None:
        self.examples: Examples = examples
        self.options: BatchOptions = options
        self._longest = options.longest
        lengths = examples.lengths
        if lengths.max() > self._longest:
            raise ValueError(
                f"example {lengths.argmax()} has {lengths.max()} tokens, special ones included, "
                f"but a batch takes {self._longest} at most. Leave it out, or raise the limit (the "
                "smallest of max_length, tokens_per_batch // batch_multiple, last boundary)."
            )
        drawn = examples.drawn(options.seed, 0, self._longest).lengths
        if options.bucket_boundaries is None:
            self._boundaries = _choose_boundaries(drawn, self._batch_size)
        else:
            self._boundaries = np.unique(np.minimum(options.bucket_boundaries, self._longest))
        # Drawn rows have other lengths in each epoch. The last bucket takes the longest of them.
        self._longest = self._boundaries[-1] = max(self._boundaries[-1], lengths.max())
        buckets = self._buckets(drawn, self._boundaries)
        self.batches_per_epoch: int = sum(bucket.fewest for bucket in buckets)
        if any(column.draw for column in examples.columns.values()):
            # One more batch per bucket, so that an epoch with longer rows needs no larger batches.
            # Few examples do not fill them: the last number holds for any lengths.
            self.batches_per_epoch = min(self.batches_per_epoch + len(buckets), self._most_batches)
        self.digest: str = self._digest(drawn)

    def _digest(self, drawn: Ids) -> str:
        """Returns a hash of the examples, in their order, and of the buckets."""
        columns = self.examples.columns.values()
        parts = [part for column in columns for part in (column.values, column.starts)]
        parts += [self.examples.lengths, drawn, self._boundaries]
        if self.examples.labels is not None:
            parts.append(self.examples.labels)
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(np.ascontiguousarray(part))
        return digest.hexdigest()

    def iterate(self, epoch: int, batch: int = 0) -> Iterator[Any]:
        """Yields an epoch's batches, as arrays, from number `batch` on.

        Earlier batches are not built.
        """
        examples = self.examples.drawn(self.options.seed, epoch, self._longest)
        multiple, static = self.options.batch_multiple, self.options.static_shapes
        for indices, length in self._order(epoch, examples.lengths)[batch:]:
            size = -(-len(indices) // multiple) * multiple  # B
            if static:
                yield examples.batch(indices, max(size, self._batch_size(length)), length)
            else:
                yield examples.batch(indices, size, None)

    @property
    def _most_batches(self) -> int:
        """The greatest number of batches that any lengths of the examples allow."""
        return -(-len(self.examples.lengths) // self.options.batch_multiple)

    def _batch_size(self, length: int) -> int:
        """Returns B of a full batch of examples of this length."""
        multiple = self.options.batch_multiple
        return int(self.options.tokens_per_batch // length // multiple * multiple)

    def _buckets(self, lengths: Ids, boundaries: Ids) -> list[_Bucket]:
        """Returns the buckets that are not empty."""
        buckets, numbers = [], np.searchsorted(boundaries, lengths)
        for number, length in enumerate(boundaries):
            indices = np.flatnonzero(numbers == number)
            if len(indices):
                fewest = -(-len(indices) // self._batch_size(length))
                most = -(-len(indices) // self.options.batch_multiple)
                buckets.append(_Bucket(indices, int(length), fewest, most))
        return buckets

    def _order(self, epoch: int, lengths: Ids) -> list[tuple[Ids, int]]:
        """Returns an epoch's batches: indices of examples, and the length of their bucket."""
        rng = np.random.default_rng([self.options.seed, epoch])
        boundaries = self._boundaries
        buckets = self._buckets(lengths, boundaries)
        few = self.batches_per_epoch == self._most_batches
        while sum(bucket.fewest if few else 1 for bucket in buckets) > self.batches_per_epoch:
            # The smallest bucket joins one of longer rows.
            smallest = min(buckets[:-1], key=lambda bucket: len(bucket.indices))
            boundaries = boundaries[boundaries != smallest.length]
            buckets = self._buckets(lengths, boundaries)
        order = []
        for bucket, count in zip(buckets, self._apportioned(buckets), strict=True):
            indices = bucket.indices
            if self.options.shuffle:
                indices = rng.permutation(indices)
            else:
                indices = indices[np.argsort(lengths[indices], kind="stable")]
            # Batches of near-equal size, not full ones and a small rest; cut at multiples only.
            cuts = np.arange(1, count) * bucket.most // count * self.options.batch_multiple
            order += [(part, bucket.length) for part in np.split(indices, cuts)]
        return [order[i] for i in rng.permutation(len(order))] if self.options.shuffle else order

    def _apportioned(self, buckets: list[_Bucket]) -> Ids:
        """Returns the batch counts of the buckets, which add up to `batches_per_epoch`.

        It adds a batch to the bucket with the fullest batches, or takes one from the bucket with
        the emptiest, until the numbers add up.
        """
        counts = np.array([bucket.fewest for bucket in buckets])
        most = np.array([bucket.most for bucket in buckets])
        while counts.sum() < self.batches_per_epoch:
            counts[np.argmax(np.where(counts < most, most / counts, 0))] += 1
        while counts.sum() > self.batches_per_epoch:
            counts[np.argmin(np.where(counts > 1, most / counts, np.inf))] -= 1
        return counts


def _choose_boundaries(lengths: Ids, batch_size: Callable[[int], int]) -> Ids:
    """Returns the greatest lengths of buckets of `_FULL_BATCHES` batches each, if possible.

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
