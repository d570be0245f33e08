"""Callbacks for `model.fit`: BLEU, tokens per second, time left, a stop at non-finite losses."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.text.vocabularies import check_tokenizers, of_both_sides
from keras_transformer.text.words import bleu_tokens
from keras_transformer.translation import translate
from keras_transformer.types import AnyTokenizer


class BleuCallback(keras.callbacks.Callback):
    """Translates the validation set at the end of epochs, and reports BLEU as `val_bleu`.

    sacreBLEU computes the score. The callback prints it with its signature and adds it to the logs
    of the epoch, where the progress bar, the history, TensorBoard and
    `EarlyStopping("val_bleu", mode="max")` read it. Put this callback before callbacks that use it.

    In an epoch without a translation (`every`, `start`) the logs have no `val_bleu`. Keras'
    callbacks then ignore the epoch, and `EarlyStopping` and `ModelCheckpoint` warn that the value
    is missing. So `EarlyStopping(patience=3)` waits for three translations without a better score.
    `CSVLogger` takes its columns from the first epoch of a run and writes "NA" for a missing value:
    with `start` above 0 it has no column for `val_bleu`.

    The callback scores the current weights of the model. To score averaged weights, load them into
    another model.

    Args:
        search: `BeamSearch` or `GreedySearch`.
        tokenizer: `Tokenizer`.
        source_lines: list of N sentences.
        reference_lines: list of N reference translations.
        target_tokenizer: `Tokenizer` of the target. Defaults to `None`: `tokenizer` for both.
        every: translate after every n-th epoch, and after the last one. Defaults to 1.
        start: number of epochs before the first translation. Defaults to 0.
        tokens_per_batch: source tokens of one search, padding included; sentences of similar length
            share a batch. Defaults to 4096.
        tokenize: sacreBLEU's tokeniser. Defaults to `None`: "13a", or "char" for references in
            which no line has four words or most have no spaces between words. Use "none" for
            tokenised text.

    Attributes:
        best: highest score so far.
        best_epoch: epoch of the highest score, counted from 1 as Keras prints it.
        translations: list of N strings, the last translations.

    Raises:
        ValueError: there is no sentence, the numbers of sentences and references differ, or `every`
            is below 1.

    Example:

    >>> bleu = BleuCallback(BeamSearch(4), tokenizer, sources, references)  # doctest: +SKIP
    >>> stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=10)
    >>> model.fit(train, epochs=100, callbacks=[bleu, stop])  # doctest: +SKIP
    """

    def __init__(
        self,
        search: Callable[..., Any],
        tokenizer: AnyTokenizer,
        source_lines: Sequence[str],
        reference_lines: Sequence[str],
        *,
        target_tokenizer: AnyTokenizer | None = None,
        every: int = 1,
        start: int = 0,
        tokens_per_batch: int = 4096,
        tokenize: str | None = None,
    ) -> None:
        super().__init__()
        if not len(source_lines) or len(source_lines) != len(reference_lines):
            raise ValueError(
                f"BleuCallback needs at least one sentence and one reference for each, but got "
                f"{len(source_lines)} sentences and {len(reference_lines)} references."
            )
        if every < 1:
            raise ValueError(f"every must be at least 1, but it is {every}.")
        try:
            import sacrebleu
        except ModuleNotFoundError as error:
            message = "BleuCallback needs sacrebleu: pip install sacrebleu"
            raise ModuleNotFoundError(message, name=error.name) from error

        self.search = search
        self.tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer
        self.source_lines: list[str] = list(source_lines)
        self.reference_lines: list[str] = list(reference_lines)
        self.every = every
        self.start = start
        self.tokens_per_batch = tokens_per_batch
        self.best: float = float("-inf")
        self.best_epoch: int | None = None
        self.translations: list[str] = []
        self._scorer = sacrebleu.metrics.BLEU(tokenize=tokenize or bleu_tokens(reference_lines))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        tokenizers = of_both_sides(self.model, self.tokenizer, self.target_tokenizer)
        check_tokenizers(self.model, tokenizers)  # now, and not after an epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        is_last = epoch + 1 == (self.params or {}).get("epochs")
        if epoch < self.start or (epoch - self.start) % self.every and not is_last:
            return
        self.translations = translate(
            self.search,
            self.model,
            self.tokenizer,
            self.source_lines,
            self.tokens_per_batch,
            self.target_tokenizer,
        )
        score = self._scorer.corpus_score(self.translations, [self.reference_lines])
        print(f"\nepoch {epoch + 1}: {score} {self._scorer.get_signature()}", flush=True)
        if score.score > self.best:
            self.best, self.best_epoch = score.score, epoch + 1
        if logs is not None:
            logs["val_bleu"] = score.score


class Throughput(keras.callbacks.Callback):
    """Adds `tokens_per_second` (source and target) and `minutes_left` to the progress bar and logs.

    The estimate in Keras' progress bar covers one epoch; `minutes_left` covers all epochs,
    including validation. Padding does not count. Every batch counts as a mean batch, so the rate is
    exact only at the end of an epoch. It excludes the time of validation.

    Args:
        data: the dataset that is passed to `fit`. Datasets of this package store their number of
            tokens. For other datasets one pass before training counts the integer inputs that are
            not 0.
        tokens_per_batch: number of source and target tokens of a mean batch, instead of `data`.

    Raises:
        ValueError: neither or both of `data` and `tokens_per_batch`.

    Example:

    >>> model.fit(train, epochs=9, callbacks=[Throughput(train)])  # doctest: +SKIP
    """

    def __init__(self, data: Any = None, tokens_per_batch: float | None = None) -> None:
        super().__init__()
        if (data is None) == (tokens_per_batch is None):
            raise ValueError("Pass either data or tokens_per_batch, the tokens of a mean batch.")
        self.tokens_per_batch: float | None = (
            tokens_per_batch if data is None else _mean_tokens(data)
        )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._between = 0.0  # seconds of the last validation

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch
        self._updates = self._count_updates()
        self._begin = self._end = time.perf_counter()
        self._rate = 0.0

    def _count_updates(self) -> int:
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        batches = batch + 1
        if keras.backend.backend() == "tensorflow":  # JAX writes `iterations` after the epoch only
            # A run that resumes within an epoch skips batches without an update.
            updates = self._count_updates() - self._updates
            batches = min(updates * self.model.steps_per_execution, batches)
        self._end = time.perf_counter()
        seconds = self._end - self._begin
        self._rate = batches * self.tokens_per_batch / seconds
        if logs is not None:
            logs["tokens_per_second"] = self._rate
            steps = self.params.get("steps")
            if steps and batches:
                epochs = self.params["epochs"] - self._epoch - 1
                left = (steps - batch - 1 + epochs * steps) * seconds / batches
                logs["minutes_left"] = (left + (epochs + 1) * self._between) / 60

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._between = time.perf_counter() - self._end
        if logs is not None:
            logs["tokens_per_second"] = self._rate


def _mean_tokens(data: Any) -> float:
    """Returns the mean number of tokens in a batch, over all its inputs."""
    report = getattr(getattr(data, "batches", None), "report", None)
    if report is not None:
        return sum(report.tokens.values()) / report.batches
    tokens = batches = 0
    for batch in data:
        for inputs in keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(batch)[0]):
            ids = keras.ops.convert_to_numpy(inputs)
            tokens += np.count_nonzero(ids) if np.issubdtype(ids.dtype, np.integer) else 0
        batches += 1
    if not tokens:
        raise ValueError("The data has no tokens to count: no integer inputs, or only padding.")
    return tokens / batches


class StopOnNonFinite(keras.callbacks.Callback):
    """Ends training with an error as soon as the loss is infinite or not a number.

    The next updates would make every weight NaN. Put it first in the list of callbacks, so that no
    other callback saves such weights. `keras.callbacks.TerminateOnNaN` ends `fit` without an error.

    Raises:
        ValueError: during training, if the loss is not finite.

    Example:

    >>> model.fit(train, callbacks=[StopOnNonFinite()])  # doctest: +SKIP
    """

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not np.isfinite(loss):
            raise ValueError(
                f"The loss is {loss} in epoch {self._epoch + 1}, batch {batch + 1}. A lower "
                "learning rate, a longer warm-up or global_clipnorm=1.0 on the optimizer usually "
                "helps; so does norm_first=True. Weights saved before this batch are finite."
            )
