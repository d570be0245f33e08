"""The batches of each epoch for `model.fit`, and the report of examples left out."""

import itertools
import logging
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_transformer.data.examples import Examples
from keras_transformer.data.plan import BatchOptions, BatchPlan
from keras_transformer.types import AnyTokenizer, Array

# The result of functions that make batches: a `tf.data.Dataset` on TensorFlow, a `Batches` on other
# backends. Both have the attribute `batches`, a `Batches`.
Dataset: TypeAlias = Any

_log = logging.getLogger(__name__)


def make_dataset(
    examples: Examples,
    options: BatchOptions,
    tokenizers: Mapping[str, AnyTokenizer],
    label_names: list[str] | None = None,
    cut: int = 0,
) -> Dataset:
    """Makes batches of the examples that fit, and logs the examples left out.

    Args:
        examples: N examples; empty and over-long ones are left out.
        options: `BatchOptions`.
        tokenizers: the tokenizers of the ids, by side: "source" and "target".
        label_names: names of the classes, or `None`.
        cut: number of examples that were shortened.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`; elsewhere a `Batches`.

    Raises:
        ValueError: no example is left.
    """
    kept = examples.keep(examples.fitting(options.longest))
    read, empty = len(examples.empty), int(examples.empty.sum())
    counts = {
        "unit": examples.unit,
        "read": read,
        "kept": len(kept.empty),
        "empty": empty,
        "overlong": read - len(kept.empty) - empty,
        "longest": options.longest,
        "limits": "".join(f" or {most} of the {name}" for name, most in examples.limits.items()),
    }
    if not len(kept.empty):
        raise ValueError(
            "no {unit} is left of {read}: {empty} empty, {overlong} longer than {longest} "
            "tokens{limits} (the smallest of max_length, tokens_per_batch // batch_multiple and "
            "the last bucket boundary). Check the data, or raise the limit.".format(**counts)
        )
    plan = BatchPlan(kept, options)
    report = Report(
        **counts,
        duplicates=kept.duplicates,
        tokens={side: int(rows.lengths.sum()) for side, rows in kept.columns.items()},
        batches=plan.batches_per_epoch,
        cut=cut,
    )
    complete = report.kept == report.read and not report.cut
    _log.log(logging.INFO if complete else logging.WARNING, "%s", report)
    batches = Batches(plan, report, tokenizers, label_names)
    return batches.dataset() if keras.backend.backend() == "tensorflow" else batches


@dataclass(frozen=True)
class Report:
    """Counts of examples: `read == kept + empty + overlong`; duplicates are kept.

    `empty` counts the examples without text, and the pairs of which one side has no text.
    `tokens` counts the tokens of the kept examples by side, such as "source" and "target":
    including the begin or end token, without padding. `cut` counts the kept examples that were
    shortened. `limits` names the limits of single sides beside `longest`. `str(report)` is a
    sentence.
    """

    unit: str
    read: int
    kept: int
    empty: int
    overlong: int
    duplicates: int
    longest: int
    limits: str
    tokens: dict[str, int]
    batches: int
    cut: int

    def __str__(self) -> str:
        tokens = " and ".join(f"{count} {side}" for side, count in self.tokens.items())
        cut = f"{self.cut} cut at {self.longest} tokens; " if self.cut else ""
        return (
            f"{self.read} {self.unit}s read, {self.kept} kept ({self.duplicates} of them "
            f"duplicates); left out: {self.empty} empty, {self.overlong} longer than "
            f"{self.longest} tokens{self.limits}; {cut}{tokens} tokens in {self.batches} batches "
            "an epoch"
        )


class Batches(keras.utils.PyDataset):
    """The batches of each epoch, for `model.fit`.

    Functions such as `translation_batches` return a `Batches` on the JAX and PyTorch backends. On
    TensorFlow they return a `tf.data.Dataset` of the same batches. Both have the attribute
    `batches`, which is a `Batches`.

    A pass that reaches its last batch advances to the next epoch. `seek` sets the epoch of the next
    pass. `fit` may start passes that it never reads. This callback ties the order to the epochs of
    `fit`:

        keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: train.batches.seek(epoch))

    The order of the batches is fixed: `fit` cannot shuffle them, and needs no `shuffle=False`. On
    JAX and PyTorch an epoch of `fit` always begins with the first batch of a pass, so leave out
    `steps_per_epoch`.

    Attributes:
        report: numbers of examples that were kept and left out; `str(report)` is a sentence.
        batches_per_epoch: int, the same for every epoch.
        epoch: int, epoch of the next pass.
        settings: dictionary of JSON values that must be equal for a run to resume.
        labels: list of str, the names of the classes in the order of their ids; `None` if the
            labels are not classes.
        tokenizers: dictionary from "source" or "target" to the tokenizer of these ids. A model of
            this package records them in `fit`.
    """

    def __init__(
        self,
        plan: BatchPlan,
        report: Report,
        tokenizers: Mapping[str, AnyTokenizer],
        labels: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.report: Report = report
        self.tokenizers: dict[str, AnyTokenizer] = dict(tokenizers)
        self.batches_per_epoch: int = plan.batches_per_epoch
        self.epoch: int = 0
        self._skipped = 0  # batches at the start of the next pass
        options = ("tokens_per_batch", "batch_multiple", "shuffle", "seed")
        self.settings: dict[str, Any] = {
            "batches": plan.batches_per_epoch,
            "tokens": report.tokens,
            "content": plan.digest,
            **{name: int(getattr(plan.options, name)) for name in options},
        }
        self.labels: list[str] | None = labels
        self._plan = plan
        self._pass: Iterator[Any] = iter(())
        self._lock = threading.Lock()  # generators run in TensorFlow's threads
        self._seeks = 0

    @property
    def batches(self) -> "Batches":
        """This object. Datasets of TensorFlow have the same attribute."""
        return self

    def iterate(self, epoch: int, batch: int = 0) -> Iterator[Any]:
        """Yields the batches of an epoch as NumPy arrays, from number `batch` on.

        Earlier batches are not built.
        """
        return self._plan.iterate(epoch, batch)

    def count_shapes(self, batches: int = 200) -> int:
        """Returns the number of different shapes among the first batches of the next epoch.

        XLA compiles a training step once for each. `static_shapes` makes them few.

        Args:
            batches: int, the number of batches to look at. Defaults to 200.
        """
        first = itertools.islice(self.iterate(self.epoch), batches)
        return len({tuple(x.shape for x in keras.tree.flatten(batch)) for batch in first})

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Sets the epoch of the next pass.

        Args:
            epoch: number of the epoch, from 0.
            batch: number of the first batch to build. The pass still yields every batch, but equal
                small ones in place of those before. `Run` reads them without training. Defaults
                to 0.

        Raises:
            ValueError: a number is negative, or an epoch has fewer batches.
        """
        if epoch < 0:
            raise ValueError(f"epochs are counted from 0, got {epoch}.")
        if not 0 <= batch <= self.batches_per_epoch:
            raise ValueError(
                f"an epoch has {self.batches_per_epoch} batches, so a run cannot resume at "
                f"{batch}. Did the interrupted run have other data or another tokens_per_batch?"
            )
        with self._lock:
            self._seeks += 1
            self.epoch, self._skipped = int(epoch), int(batch)

    def dataset(self) -> Dataset:
        """Makes a `tf.data.Dataset`. Each pass yields the next epoch, from `epoch` on."""
        # Keras warns that `fit` does not shuffle such data, although users did not ask for it.
        warnings.filterwarnings("ignore", "`shuffle=True` was passed, but will be ignored")
        import tensorflow as tf  # here and not above: other backends do not need it

        inputs, labels = self._example()
        signature = (
            tf.nest.map_structure(lambda x: tf.TensorSpec(_input_shape(x), x.dtype), inputs),
            # All axes are free: a token may have one label for each source token.
            tf.nest.map_structure(lambda x: tf.TensorSpec([None] * x.ndim, x.dtype), labels),
        )
        dataset = tf.data.Dataset.from_generator(self.__iter__, output_signature=signature)
        cardinality = tf.data.experimental.assert_cardinality(self.batches_per_epoch)
        options = tf.data.Options()
        # There is nothing to tune. At the end of an epoch TensorFlow 2.21 may wait for the next
        # round of tuning: up to a minute.
        options.autotune.enabled = False
        # There are no files to shard by: each worker takes its part of every batch.
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        dataset = dataset.apply(cardinality).with_options(options).prefetch(2)
        dataset.batches = self
        return dataset

    def _example(self) -> Any:
        """Makes a small batch with the structure of all batches."""
        return self._plan.examples.batch(np.zeros(1, int), 1, None)

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            epoch, seeks, skipped = self.epoch, self._seeks, self._skipped
            self._skipped = 0  # in one pass only
        placeholders = itertools.repeat(self._example(), skipped)
        batches = itertools.chain(placeholders, self.iterate(epoch, skipped))
        for number, batch in enumerate(batches, 1):
            if number == self.batches_per_epoch:
                # Before the last batch is yielded, because `fit` reads no further than the
                # cardinality. Not if `seek` was called since: passes that `fit` drops may end late.
                with self._lock:
                    if seeks == self._seeks:
                        self.epoch = epoch + 1
            yield batch

    # `keras.utils.PyDataset`. Keras asks for batches by number, and by default in random order. The
    # order of these batches is fixed, so each request gets the next batch of the pass.

    def __len__(self) -> int:
        return self.batches_per_epoch

    def on_epoch_begin(self) -> None:
        self._pass = iter(self)

    def __getitem__(self, index: int) -> Any:
        return next(self._pass)


def _input_shape(x: Array) -> list[int | None]:
    """Returns the shape of an input whose batch size and length are free, other axes fixed."""
    length = 2 if x.ndim == 4 else 1  # images (B, H, W, C)
    return [None if axis in (0, length) else size for axis, size in enumerate(x.shape)]
