"""Text to go on with, as a `tf.data.Dataset` of training batches for language models.

Shapes: B batch, T target length, N windows or lines.
"""

import os
from dataclasses import dataclass

import numpy as np

from keras_transformer.data.batches import Batching, Ragged, check_count
from keras_transformer.data.checks import checked_strings
from keras_transformer.data.dataset import choose, make_dataset
from keras_transformer.data.encoding import encode_rows, fitting, lengths_of, sample_rng
from keras_transformer.data.translation import shifted
from keras_transformer.special_ids import BEGIN_ID
from keras_transformer.text.corpora import read_lines

_NOT_WITH_WINDOW = "max_length", "bucket_boundaries"


def language_model_batches(
    texts,
    tokenizer,
    tokens_per_batch=8192,
    *,
    window=None,
    stride=None,
    begin=True,
    sampling_alpha=None,
    **batching,
):
    """Makes a `tf.data.Dataset` of batches for language models and `model.fit`.

    Each element is `(target_ids (B, T), labels (B, T))`, int32: position i learns the token that
    follows it.

    Without `window` each row is one document: it starts with the begin token, its labels end with
    the end token, and both are padded with 0. Documents of similar length come together.

    With `window` the documents are one long text, with the end token after each of them, and each
    row is a part of it, T = `window`. The windows start every `stride` tokens. With `shuffle=True`
    each of them starts anywhere before the next one, drawn anew in each epoch, and they come in
    random order. With `shuffle=False` they come in the order of the text, and the default `stride`
    predicts each token once; the end that fills no window is left out.

    Args:
        texts: str or path-like, a file, plain or gzip: one document a line, or with `window` one
            document, line ends included; or a sequence of strings, one document each.
        tokenizer: `Tokenizer`; one trained with `model_type="char"` gives characters.
        tokens_per_batch: int, limit of `B * T`: for B windows a batch `B * window`.
        window: int, T, or None.
        stride: int, tokens from one window to the next. Defaults to `None`: `window`.
        begin: bool. If True, windows start with the begin token, as prompts do when the model
            generates, and their T labels are T tokens of the text. If False, they start within the
            text.
        sampling_alpha: float or None; see `translation_batches`. Not with `window`.
        **batching: see `classification_batches`; `max_length` and `bucket_boundaries` not with
            `window`.

    Returns:
        `tf.data.Dataset` with the attribute `batches`, a `Batches`.

    Raises:
        TypeError: a document is no string.
        ValueError: a file is not UTF-8, no document is left, the text has fewer tokens than a
            window, or an argument does not fit.

    Example:

    >>> tokenizer = Tokenizer.train(["to be or not"], 300, model_type="char")
    >>> train = language_model_batches(["to be or not to be"], tokenizer, window=5)
    >>> train.batches.report.kept
    4
    """
    if window is None:
        return _document_batches(texts, tokenizer, tokens_per_batch, sampling_alpha, batching)
    if sampling_alpha is not None or not batching.keys().isdisjoint(_NOT_WITH_WINDOW):
        raise ValueError(f"sampling_alpha, {' and '.join(_NOT_WITH_WINDOW)} go without window.")
    check_count("window", window)
    check_count("stride", window if stride is None else stride)
    batching = Batching(tokens_per_batch, window, **batching)
    if batching.longest < window:
        raise ValueError(
            f"A window of {window} tokens does not fit into a batch: tokens_per_batch // "
            f"batch_multiple is {batching.longest}."
        )
    if isinstance(texts, (str, os.PathLike)):
        texts = ["\n".join(read_lines(texts)) + "\n"]
    ids = np.concatenate(encode_rows(tokenizer, checked_strings(texts, "texts")))
    last = len(ids) - (window if begin else window + 1)  # where the last window can start
    if last < 0:
        raise ValueError(
            f"The text has {len(ids)} tokens, too few for a window of {window} and the token after "
            "it. Choose a smaller window."
        )
    starts = np.arange(0, last + 1, window if stride is None else stride)

    def resample(epoch, longest):
        # One in each stride: an epoch sees every part of the text about equally often.
        rng, latest = sample_rng(batching.seed, epoch), np.append(starts[1:], last + 1)
        return Windows(ids, rng.integers(starts, latest), window, begin)

    examples = Windows(ids, starts, window, begin)
    _, counts = choose("window", examples.lengths, window, empty=0 * starts, keys=starts.tolist())
    counts["tokens"] = {"target": window * len(starts)}
    return make_dataset(examples, batching, counts, resample=resample if batching.shuffle else None)


def _document_batches(texts, tokenizer, tokens_per_batch, sampling_alpha, batching):
    batching = Batching(tokens_per_batch, **batching)
    is_file = isinstance(texts, (str, os.PathLike))
    texts = read_lines(texts) if is_file else checked_strings(texts, "texts")
    rows = encode_rows(tokenizer, texts)
    empty = [not text.strip() for text in texts]
    keep, counts = choose("document", lengths_of(rows), batching.longest, empty=empty, keys=texts)
    texts = [texts[i] for i in keep]
    examples = Documents(Ragged([rows[i] for i in keep]))

    def resample(epoch, longest):
        rng = sample_rng(batching.seed, epoch)
        drawn = encode_rows(tokenizer, texts, sampling_alpha, rng)
        return Documents(fitting(drawn, examples.target, longest))

    counts["tokens"] = {"target": int(examples.lengths.sum())}
    resample = None if sampling_alpha is None else resample
    return make_dataset(examples, batching, counts, resample=resample)


@dataclass
class Documents:
    """Rows of ids with their end token."""

    target: Ragged

    @property
    def lengths(self):
        return self.target.lengths

    def batch(self, rows, size, length):
        return shifted(self.target.take(rows), size, length)


@dataclass
class Windows:
    """Parts of one text, all of one length."""

    ids: np.ndarray
    starts: np.ndarray  # (N,)
    window: int
    begin: bool

    @property
    def lengths(self):
        return np.full(len(self.starts), self.window)

    def batch(self, rows, size, length):
        positions = self.starts[rows][:, None] + np.arange(self.window + 1 - self.begin)
        tokens = self.ids[positions]
        if self.begin:
            tokens = np.pad(tokens, ((0, 0), (1, 0)), constant_values=BEGIN_ID)
        tokens = np.pad(tokens, ((0, size - len(rows)), (0, 0)))  # (B, T + 1)
        return tokens[:, :-1], tokens[:, 1:]
