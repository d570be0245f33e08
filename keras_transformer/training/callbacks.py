"""Callbacks for `model.fit`: BLEU, tokens per second, time left, a stop at non-finite losses."""

import time

import keras
import numpy as np

from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import END_ID
from keras_transformer.training.checkpoints import write_weights


class BleuCallback(keras.callbacks.Callback):
    """Translates the validation set at the end of epochs, and reports BLEU as `val_bleu`.

    The score is sacreBLEU's, printed with its signature. It joins the logs of the epoch, so that
    the progress bar, the history, TensorBoard and `EarlyStopping("val_bleu", mode="max")` see it;
    put this callback before those that watch it. In an epoch without a translation (`every`) the
    logs hold the last score again, or 0 before the first one.

    The weights are those of the model at that time. To score averaged weights, load them into a
    model of their own.

    Args:
        search: `BeamSearch` or `GreedySearch`.
        tokenizer: `Tokenizer`.
        source_lines: list of N sentences.
        reference_lines: list of N reference translations.
        target_tokenizer: `Tokenizer` of the target, if it has one of its own. Defaults to `None`:
            `tokenizer` for both.
        every: translate in every n-th epoch only. Defaults to 1.
        start: number of epochs before the first translation. Defaults to 0.
        tokens_per_batch: source tokens, padding included, that are searched together; sentences
            of similar length go together. Defaults to 4096.
        tokenize: sacreBLEU's tokeniser. Defaults to "13a"; "none" for text that is tokenised.
        lowercase: compare without case. Defaults to `False`.
        best_path: file for the weights of the best epoch so far, ending in ".npz"; read it with
            `model.set_weights(average_checkpoints([best_path]))`. Defaults to `None`: not kept.

    Attributes:
        best: highest score so far, `best_epoch` its epoch, `translations` the last ones.

    Raises:
        ValueError: no sentence, another number of references than of sentences, `every` below 1,
            or a `best_path` with another ending.

    Example:

    >>> bleu = BleuCallback(BeamSearch(4), tokenizer, sources, references)  # doctest: +SKIP
    >>> stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=10)
    >>> model.fit(train, epochs=100, callbacks=[bleu, stop])  # doctest: +SKIP
    """

    def __init__(
        self,
        search,
        tokenizer,
        source_lines,
        reference_lines,
        *,
        target_tokenizer=None,
        every=1,
        start=0,
        tokens_per_batch=4096,
        tokenize="13a",
        lowercase=False,
        best_path=None,
    ):
        super().__init__()
        if not len(source_lines) or len(source_lines) != len(reference_lines):
            raise ValueError(
                f"There must be one reference for each of at least one sentence, but there are "
                f"{len(source_lines)} sentences and {len(reference_lines)} references."
            )
        if every < 1:
            raise ValueError(f"every must be at least 1, but it is {every}.")
        if best_path is not None and not str(best_path).endswith(".npz"):
            raise ValueError(f'best_path must end in ".npz", but it is {best_path}.')
        import sacrebleu  # here and not above: nothing else needs it

        self.search = search
        self.tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer
        self.source_lines = list(source_lines)
        self.reference_lines = list(reference_lines)
        self.every = every
        self.start = start
        self.tokens_per_batch = tokens_per_batch
        self.best_path = best_path
        self.best, self.best_epoch = float("-inf"), None
        self.last = 0.0
        self.translations = []
        self._scorer = sacrebleu.metrics.BLEU(tokenize=tokenize, lowercase=lowercase)

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= self.start and (epoch - self.start) % self.every == 0:
            self.translations = translate(
                self.search,
                self.model,
                self.tokenizer,
                self.source_lines,
                self.tokens_per_batch,
                self.target_tokenizer,
            )
            score = self._scorer.corpus_score(self.translations, [self.reference_lines])
            self.last = score.score
            print(f"\nepoch {epoch}: {score} {self._scorer.get_signature()}", flush=True)
            if self.last > self.best:
                self.best, self.best_epoch = self.last, epoch
                if self.best_path is not None:
                    info = {"epoch": epoch, "val_bleu": self.best}
                    write_weights(self.best_path, self.model, info)
        if logs is not None:
            logs["val_bleu"] = self.last


def translate(search, model, tokenizer, lines, tokens_per_batch=4096, target_tokenizer=None):
    """Translates sentences in batches of similar length.

    Args:
        search: `BeamSearch` or `GreedySearch`.
        model: `Transformer`.
        tokenizer: `Tokenizer`.
        lines: list of strings.
        tokens_per_batch: source tokens, padding included, of a batch. Defaults to 4096.
        target_tokenizer: `Tokenizer` of the target. Defaults to `None`: `tokenizer` for both.

    Returns:
        List of strings, the best translation of each line, in the order of `lines`.
    """
    ids = [[*row, END_ID] for row in tokenizer.encode(lines)]
    translations = [""] * len(lines)
    decode = (target_tokenizer or tokenizer).decode
    waiting = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    while waiting:
        # The longest first: if memory does not suffice, that shows at once.
        rows = max(1, tokens_per_batch // len(ids[waiting[-1]]))
        batch = waiting[-rows:]
        del waiting[-rows:]
        source_ids = pad_rows([ids[i] for i in batch])  # (B, S)
        best = keras.ops.convert_to_numpy(search(model, source_ids).ids)[:, 0]  # (B, T)
        for i, text in zip(batch, decode(best), strict=True):
            translations[i] = text
    return translations


class Throughput(keras.callbacks.Callback):
    """Adds `tokens_per_second` (source and target) and `minutes_left` to the progress bar and logs.

    The bar's own estimate ends with the epoch; `minutes_left` is for all epochs, the time of
    validation included. Padding does not count. Within an epoch the tokens are those of a mean
    batch; over a whole epoch of `translation_batches` they are exact. The rate is that of training
    alone, without validation.

    Args:
        data: the dataset that `fit` gets, if it is one of this package's, such as
            `translation_batches` makes, which know their tokens. Other datasets are counted in one
            pass, before training: integer inputs that are not 0.
        tokens_per_batch: number of source and target tokens of a mean batch, in place of `data`.

    Raises:
        ValueError: neither or both of `data` and `tokens_per_batch`.

    Example:

    >>> model.fit(train, epochs=9, callbacks=[Throughput(train)])  # doctest: +SKIP
    """

    def __init__(self, data=None, tokens_per_batch=None):
        super().__init__()
        if (data is None) == (tokens_per_batch is None):
            raise ValueError("Give either data or tokens_per_batch, the tokens of a mean batch.")
        self.tokens_per_batch = tokens_per_batch if data is None else _mean_tokens(data)

    def on_train_begin(self, logs=None):
        self._between = 0.0  # seconds of the last validation

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self._updates = self._count_updates()
        self._begin = self._end = time.perf_counter()
        self._rate = 0.0

    def _count_updates(self):
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))

    def on_train_batch_end(self, batch, logs=None):
        # Updates, not batches: training that is resumed within an epoch skips batches.
        updates = self._count_updates() - self._updates
        self._end = time.perf_counter()
        seconds = self._end - self._begin
        batches = min(updates * self.model.steps_per_execution, batch + 1)
        self._rate = batches * self.tokens_per_batch / seconds
        if logs is not None:
            logs["tokens_per_second"] = self._rate
            steps = self.params.get("steps")
            if steps and batches:
                epochs = self.params["epochs"] - self._epoch - 1
                left = (steps - batch - 1 + epochs * steps) * seconds / batches
                logs["minutes_left"] = (left + (epochs + 1) * self._between) / 60

    def on_epoch_end(self, epoch, logs=None):
        self._between = time.perf_counter() - self._end
        if logs is not None:
            logs["tokens_per_second"] = self._rate


def _mean_tokens(data):
    """Tokens of a mean batch of a dataset, of all its sides."""
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
        raise ValueError("The data has no tokens to count: no integer inputs, or none but padding.")
    return tokens / batches


class StopOnNonFinite(keras.callbacks.Callback):
    """Ends training with an error as soon as the loss is infinite or not a number.

    The next updates would make every weight NaN. Put it first in the list of callbacks, so that no
    other one saves such weights. (`keras.callbacks.TerminateOnNaN` ends `fit` as if all were well.)

    Raises:
        ValueError: while training, when that happens.

    Example:

    >>> model.fit(train, callbacks=[StopOnNonFinite()])  # doctest: +SKIP
    """

    def on_train_begin(self, logs=None):
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        loss = (logs or {}).get("loss", 0.0)
        if not np.isfinite(loss):
            raise ValueError(
                f"The loss is {loss} in epoch {self._epoch}, batch {batch}. A lower learning rate, "
                "a longer warm-up or global_clipnorm=1.0 on the optimizer usually helps; so "
                "does norm_first=True. Weights saved before this batch are finite."
            )
