"""Examples of any kind as a `tf.data.Dataset`: its epochs, and the report of what was left out."""

import logging
import threading
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_transformer.data.batches import TokenBatches

_log = logging.getLogger(__name__)


def make_dataset(examples, batching, counts, *, resample=None, labels=None):
    """A `tf.data.Dataset` of batches, with the attribute `batches`; its report is logged.

    Args:
        examples, batching, resample: see `TokenBatches`.
        counts: dict, all of `BatchReport` but the number of batches.
        labels: list of str or None, names of the classes.
    """
    plan = TokenBatches(examples, batching, resample)
    report = BatchReport(**counts, batches=plan.batches_per_epoch)
    whole = report.kept == report.read and not report.cut
    _log.log(logging.INFO if whole else logging.WARNING, "%s", report)
    return Batches(plan, report, batching.initial_epoch, batching.prefetch, labels).dataset()


@dataclass(frozen=True)
class BatchReport:
    """How many examples were kept: `read == kept + empty + overlong`; duplicates are kept.

    `tokens` counts the tokens of the kept examples by side, such as "source" and "target": with
    the begin or end token, without padding. `cut` counts the kept examples that were shortened.
    """

    unit: str
    read: int
    kept: int
    empty: int
    overlong: int
    duplicates: int
    longest: int
    tokens: dict
    batches: int
    cut: int = 0
    if_empty: str = "empty"

    @property
    def source_tokens(self):
        return self.tokens["source"]

    @property
    def target_tokens(self):
        return self.tokens["target"]

    def __str__(self):
        tokens = " and ".join(f"{count} {side}" for side, count in self.tokens.items())
        cut = f"{self.cut} cut at {self.longest} tokens; " if self.cut else ""
        return (
            f"{self.read} {self.unit}s read, {self.kept} kept ({self.duplicates} of them "
            f"duplicates); left out: {self.empty} {self.if_empty}, {self.overlong} longer than "
            f"{self.longest} tokens; {cut}{tokens} tokens in {self.batches} batches an epoch"
        )


def choose(unit, lengths, longest, *, empty, keys, if_empty="empty"):
    """Leaves out empty and over-long examples.

    Args:
        unit: str, what one example is called.
        lengths: (N,) ints, tokens of each example.
        longest: int, greatest length that is kept.
        empty: (N,) bools.
        keys: list of N hashable things, equal where examples are.
        if_empty: str, what is said of an empty example.

    Returns:
        Indices of the examples that are kept, and a dict of counts for `BatchReport`.

    Raises:
        ValueError: nothing is left.
    """
    empty = np.asarray(empty, bool)
    keep = np.flatnonzero(~empty & (lengths <= longest))
    counts = {
        "unit": unit,
        "read": len(lengths),
        "kept": len(keep),
        "empty": int(empty.sum()),
        "overlong": len(lengths) - len(keep) - int(empty.sum()),
        "duplicates": len(keep) - len({keys[i] for i in keep}),
        "longest": longest,
        "if_empty": if_empty,
    }
    if not len(keep):
        raise ValueError(
            f"no {unit} is left of {len(lengths)}: {counts['empty']} {if_empty}, "
            f"{counts['overlong']} longer than {longest} tokens (the smallest of max_length, "
            "tokens_per_batch // batch_multiple and the last bucket boundary). Check the data, or "
            "raise the limit."
        )
    return keep, counts


class Batches:
    """The batches of each epoch: the attribute `batches` of every dataset that this package makes.

    Attributes:
        report: what was kept and left out, in numbers; `str(report)` says it in a sentence.
        batches_per_epoch: int, the same for every epoch.
        epoch: int, epoch of the next pass over the dataset.
        settings: dict of what tells these batches from others, as far as JSON can hold it.
        labels: list of str, the names of the classes in the order of their ids; None where the
            labels are no classes.
    """

    def __init__(self, plan, report, initial_epoch=0, prefetch=2, labels=None):
        self.report = report
        self.batches_per_epoch = plan.batches_per_epoch
        self.settings = {
            "batches": int(plan.batches_per_epoch),
            **plan.settings,
            "tokens": {side: int(count) for side, count in report.tokens.items()},
        }
        self.labels = labels
        self._plan = plan
        self._prefetch = prefetch
        self._lock = threading.Lock()  # generators run in TensorFlow's threads
        self._seeks = 0
        self.seek(initial_epoch)

    def iterate(self, epoch, batch=0):
        """Yields the batches of an epoch as NumPy arrays, from number `batch` on.

        Earlier batches are not built.
        """
        return self._plan.iterate(epoch, batch)

    def seek(self, epoch):
        """Sets the epoch of the next pass over the dataset."""
        if epoch < 0:
            raise ValueError(f"epochs are counted from 0, got {epoch}.")
        with self._lock:
            self._seeks += 1
            self.epoch = int(epoch)

    def dataset(self):
        """A `tf.data.Dataset`: each pass gives the next epoch, from `epoch` on."""
        dataset = self._from_generator(self._next_epoch, self.batches_per_epoch)
        dataset.batches = self
        return dataset

    def rest(self, epoch, batch):
        """A `tf.data.Dataset` of one epoch's batches from number `batch` on, in every pass."""
        if not 0 <= batch <= self.batches_per_epoch:
            raise ValueError(
                f"an epoch has {self.batches_per_epoch} batches, so one cannot go on at {batch}. "
                "Was the run that is resumed started with other data or another tokens_per_batch?"
            )
        count = self.batches_per_epoch - batch
        return self._from_generator(lambda: self.iterate(epoch, batch), count)

    def _next_epoch(self):
        with self._lock:
            epoch, seeks = self.epoch, self._seeks
        for number, batch in enumerate(self.iterate(epoch), 1):
            if number == self.batches_per_epoch:
                # With the last batch, not after it: `fit` reads no further than the cardinality.
                # Only if nobody has set an epoch since: passes that `fit` drops may end late.
                with self._lock:
                    if seeks == self._seeks:
                        self.epoch = epoch + 1
            yield batch

    def _from_generator(self, generator, count):
        signature = tf.nest.map_structure(_spec, self._plan.shapes())
        dataset = tf.data.Dataset.from_generator(generator, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        options = tf.data.Options()
        # There are no files to shard by: each of several workers takes its part of every batch.
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return dataset.with_options(options).prefetch(self._prefetch)


def _spec(array):
    """Batch size and length are free; what comes after them is not."""
    shape = [None, None, *array.shape[2:]][: array.ndim]
    return tf.TensorSpec(shape, array.dtype)
