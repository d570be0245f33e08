"""Parallel text as a `tf.data.Dataset` of training batches.

Shapes: B batch, S source length, T target length.
"""

import logging
import threading
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_transformer.data.batches import Ragged, TokenBatches, length_limit
from keras_transformer.data.corpora import read_parallel

_log = logging.getLogger(__name__)
_CHUNK = 65536  # lines tokenised at once: bounds the memory that Python's lists of ids take


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
    padded with 0. Each source ends with the end token. Each row of `target_ids` starts with the
    begin token; the same row of `labels` lacks it and ends with the end token, so that position i
    learns token i + 1 (teacher forcing, section 3.1 of the paper).

    Pairs of similar length come together (section 5.1). Neither `B * S` nor `B * T`, padding
    included, exceeds `tokens_per_batch`: the paper's "25,000 source and 25,000 target tokens" is
    `tokens_per_batch=25000`. Text is tokenised once; its ids stay in memory. Each pair that is kept
    comes exactly once an epoch. All epochs have the same number of batches, the cardinality of the
    dataset, so Keras shows progress and time left.

    The order depends on (seed, epoch) only. A pass over the dataset that reaches its last batch
    moves on to the next epoch. `dataset.batches`, a `TranslationBatches`, sets the epoch of the
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
            of its batches exceed `tokens_per_batch` a little.
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
    _check_counts(
        tokens_per_batch=tokens_per_batch, batch_multiple=batch_multiple, prefetch=prefetch
    )
    if bucket_boundaries is not None:
        _check_boundaries(bucket_boundaries)
    limit = length_limit(tokens_per_batch, batch_multiple, bucket_boundaries, max_length)
    text, ids, counts = _kept_pairs(*read_parallel(source, target, undo_bpe), tokenizer, limit)

    def resample(epoch):
        rng = np.random.default_rng([seed, epoch, 1])
        return tuple(_encoded(tokenizer, side, sampling_alpha, rng) for side in text)

    plan = TokenBatches(
        *ids,
        tokens_per_batch,
        max_length=max_length,
        bucket_boundaries=bucket_boundaries,
        static_shapes=static_shapes,
        batch_multiple=batch_multiple,
        shuffle=shuffle,
        seed=seed,
        resample=resample if sampling_alpha else None,
    )
    report = TranslationReport(**counts, batches=plan.batches_per_epoch)
    _log.log(logging.WARNING if report.kept < report.read else logging.INFO, "%s", report)
    return TranslationBatches(plan, report, initial_epoch, prefetch).dataset()


@dataclass(frozen=True)
class TranslationReport:
    """How many pairs of a corpus were kept: `read == kept + empty + overlong`; duplicates are kept.

    `source_tokens` and `target_tokens` count the tokens of the kept pairs: with the begin or end
    token, without padding.
    """

    read: int
    kept: int
    empty: int
    overlong: int
    duplicates: int
    longest: int
    source_tokens: int
    target_tokens: int
    batches: int

    def __str__(self):
        return (
            f"{self.read} pairs read, {self.kept} kept ({self.duplicates} of them duplicates); "
            f"left out: {self.empty} with an empty side, {self.overlong} longer than "
            f"{self.longest} tokens; {self.source_tokens} source and {self.target_tokens} target "
            f"tokens in {self.batches} batches an epoch"
        )


class TranslationBatches:
    """The batches of each epoch: the attribute `batches` of a dataset by `translation_batches`.

    Attributes:
        report: `TranslationReport`.
        batches_per_epoch: int, the same for every epoch.
        epoch: int, epoch of the next pass over the dataset.
    """

    def __init__(self, plan, report, initial_epoch=0, prefetch=2):
        self.report = report
        self.batches_per_epoch = plan.batches_per_epoch
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
        ids = tf.TensorSpec([None, None], tf.int32)
        signature = ({"source_ids": ids, "target_ids": ids}, ids)
        dataset = tf.data.Dataset.from_generator(generator, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        options = tf.data.Options()
        # There are no files to shard by: each of several workers takes its part of every batch.
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return dataset.with_options(options).prefetch(self._prefetch)


def _kept_pairs(sources, targets, tokenizer, limit):
    """Leaves out empty and over-long pairs: (text, ids, counts), text and ids of both sides."""
    read = len(sources)
    full = [pair for pair in zip(sources, targets, strict=True) if all(s.strip() for s in pair)]
    ids = [_encoded(tokenizer, [pair[side] for pair in full]) for side in (0, 1)]
    keep = np.flatnonzero(np.maximum(ids[0].lengths, ids[1].lengths) + 1 <= limit)
    if not len(keep):
        raise ValueError(
            f"no pair is left of {read}: {read - len(full)} have an empty side, {len(full)} are "
            f"longer than {limit} tokens (the smallest of max_length, tokens_per_batch // "
            "batch_multiple and the last bucket boundary). Check the text, or raise the limit."
        )
    text = [[full[i][side] for i in keep] for side in (0, 1)]
    ids = [Ragged([side[i] for i in keep]) for side in ids]
    counts = {
        "read": read,
        "kept": len(keep),
        "empty": read - len(full),
        "overlong": len(full) - len(keep),
        "duplicates": len(keep) - len(set(zip(*text, strict=True))),
        "longest": limit,
        "source_tokens": int((ids[0].lengths + 1).sum()),
        "target_tokens": int((ids[1].lengths + 1).sum()),
    }
    return text, ids, counts


def _encoded(tokenizer, lines, alpha=None, rng=None):
    """Tokenised lines as `Ragged`; drawn at random if `alpha` is given."""
    rows = []
    for begin in range(0, len(lines), _CHUNK):
        chunk = lines[begin : begin + _CHUNK]
        options = {}
        if alpha is not None:
            options = {"sample": True, "alpha": alpha, "seed": int(rng.integers(2**32))}
        rows += [np.array(row, np.int32) for row in tokenizer.encode(chunk, **options)]
    return Ragged(rows)


def _check_counts(**counts):
    for name, count in counts.items():
        if not isinstance(count, (int, np.integer)) or count < 1:
            raise ValueError(f"{name} must be an int of at least 1, got {count!r}.")


def _check_boundaries(boundaries):
    if not len(boundaries) or boundaries[0] < 1 or np.any(np.diff(boundaries) <= 0):
        raise ValueError(
            f"bucket_boundaries must be increasing positive ints such as [16, 32, 64], got "
            f"{boundaries!r}."
        )
