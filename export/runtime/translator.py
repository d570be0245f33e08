"""Translates text with an exported ONNX artefact, without TensorFlow and Keras.

Lines become ids, ids of similar length become batches, and one `session.run` a batch does the rest:
encoder, decoder and search are inside the graph.

Shapes: `B` sentences of a batch, `S` tokens of the longest source, `W` beam width, `T` tokens of
the longest hypothesis.
"""

import logging
from typing import NamedTuple

import numpy as np

from keras_transformer.export.runtime import signature
from keras_transformer.export.runtime.artefact import ArtefactError, read_artefact
from keras_transformer.export.runtime.batching import in_batches, run_rows
from keras_transformer.export.runtime.lines import checked_lines, encode_lines, windows
from keras_transformer.export.runtime.session import check_threads, open_session
from keras_transformer.special_ids import END_ID

logger = logging.getLogger("keras_transformer.export")


class Translation(NamedTuple):
    """The result of one line.

    Attributes:
        texts: tuple of str, hypotheses, best first. One empty text for a line without text; none
            for a line that could not be translated.
        scores: tuple of float, one for each text: sum of log-probabilities / length penalty. 0 for
            a line without text.
        error: str, why the line could not be translated, or None.
    """

    texts: tuple[str, ...]
    scores: tuple[float, ...]
    error: str | None = None

    @property
    def text(self):
        """The best hypothesis, or an empty string."""
        return self.texts[0] if self.texts else ""


_NO_TEXT = Translation(("",), (0.0,))


def _failed(reason):
    return Translation((), (), str(reason))


class Translator:
    """Serves one exported artefact. Threads can share it, and results do not depend on that.

    What becomes of odd lines is part of the contract. They never change what the others give:

    | line | result |
    | --- | --- |
    | empty, white space only (`str.isspace`), or nothing that the tokenizer knows | one empty \
hypothesis, score 0 |
    | with a NUL character | ends there |
    | more tokens than the artefact's `limits["source_length"]`, special ones included | `error` |
    | bytes that are not UTF-8, half a surrogate pair | `error` |
    | one on which ONNX Runtime fails (out of memory), or whose scores are not numbers | `error` |

    `translate` and `translate_stream` give `""` for a line with an error and log a warning with its
    number and the reason; `n_best` and `n_best_stream` return the reason.

    Args:
        folder: str or path, what `keras_transformer.export.export_onnx` wrote. Weights stay in its
            file: replace that by another, as an export does, but do not write into it meanwhile.
        providers: list of ONNX Runtime's execution providers, best first, each a name or a pair of
            name and options; None (default) takes CUDA where this onnxruntime has it and the
            precision suits it, else the CPU. The first one must come up and run operators of the
            model: there is no silent fallback.
        threads: int, threads that a batch is computed with; None (default) takes every core, or
            one if there are several workers.
        workers: int, batches that are computed at the same time. Defaults to 1. On a CPU many
            lines take less time with as many workers as cores than with as many threads, because
            small operations gain little from a second thread; a single batch gains from threads
            only.
        arena: bool, keep freed memory for the next call. Faster; memory stays at its peak.
        spinning: bool, let idle threads wait actively. Faster for one caller; False leaves the
            cores to others.

    Attributes:
        provider: str, the execution provider that runs. Also logged once, at level INFO.
        manifest: dict, the content of `artefact.json`.
        tokenizer: Tokenizer.
        session: onnxruntime.InferenceSession, for those who bring ids of their own.

    Raises:
        ArtefactError: the folder is missing, damaged, foreign, of a newer format, or holds no
            translation search with its tokenizer.
        ProviderError: a provider is missing, did not come up, runs nothing of the model, or does
            not suit the precision.
        ValueError: `threads` or `workers` is less than 1, or more than 16 times the cores.

    Example:

    >>> translator = Translator("out/onnx")  # doctest: +SKIP
    >>> translator.translate(["A man rides a bicycle."])  # doctest: +SKIP
    ['Ein Mann fährt Fahrrad.']
    """

    def __init__(
        self, folder, providers=None, *, threads=None, workers=1, arena=True, spinning=True
    ):
        check_threads("workers", workers)
        if threads is None and workers > 1:
            threads = 1
        artefact = read_artefact(folder)
        self.manifest = artefact.manifest
        self.tokenizer = artefact.tokenizer
        _check_task(artefact)
        self.session = open_session(
            artefact, providers, threads=threads, arena=arena, spinning=spinning
        )
        self.provider = self.session.get_providers()[0]
        self._workers = workers
        self._source_limit = self.manifest["limits"]["source_length"]
        logger.info(
            "%s runs on %s, precision %s",
            artefact.folder,
            self.provider,
            self.manifest["precision"],
        )

    def translate(self, lines, batch_tokens=2048):
        """Best translation of each line.

        Args:
            lines: iterable of str, or of bytes in UTF-8. A newline at the end is left out.
            batch_tokens: int, most source tokens of a batch, padding included. A longer line is a
                batch of its own.

        Returns:
            List of str, in the order of `lines`.

        Raises:
            TypeError: if `lines` is one string, or holds something that is neither str nor bytes.
            ValueError: if `batch_tokens` is less than 1.
        """
        lines = list(checked_lines(lines))
        return list(self.translate_stream(lines, batch_tokens, read_ahead=max(1, len(lines))))

    def translate_stream(self, lines, batch_tokens=2048, read_ahead=1024):
        """As `translate`, lazily: reads at most `read_ahead` lines beyond the one that it yields.

        The lines read ahead are those sorted by length: more make fuller batches, 1 answers each
        line before it asks for the next.

        Returns:
            Iterator of str.
        """
        results = self.n_best_stream(lines, batch_tokens, read_ahead)
        return (_text_or_warning(number, result) for number, result in enumerate(results, 1))

    def n_best(self, lines, batch_tokens=2048):
        """All hypotheses of each line, with scores: list of `Translation`. Else as `translate`."""
        lines = list(checked_lines(lines))
        return list(self.n_best_stream(lines, batch_tokens, read_ahead=max(1, len(lines))))

    def n_best_stream(self, lines, batch_tokens=2048, read_ahead=1024):
        """As `n_best`, lazily: iterator of `Translation`. Else as `translate_stream`."""
        for name, value in {"batch_tokens": batch_tokens, "read_ahead": read_ahead}.items():
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")
        return self._results(windows(checked_lines(lines), read_ahead), batch_tokens)

    def _results(self, windows, batch_tokens):
        for lines in windows:
            # Sources end with the end token, as in training.
            rows, refused = encode_lines(lines, self.tokenizer, self._source_limit, [END_ID])
            results = in_batches(self._search, rows, batch_tokens, self._workers)
            results.update((index, _failed(reason)) for index, reason in refused.items())
            yield from (results.get(index, _NO_TEXT) for index in range(len(lines)))

    def _search(self, rows):
        """List of `Translation` for lists of ids."""
        return [self._translation(found) for found in run_rows(self._run, rows)]

    def _run(self, source_ids):
        """(B, S) int32 -> ids (B, W, T), scores (B, W)."""
        return self.session.run(
            [signature.TOKEN_IDS, signature.SCORES], {signature.SOURCE_IDS: source_ids}
        )

    def _translation(self, found):
        """`Translation` of an exception, or of a sentence's ids (W, T) and scores (W,)."""
        if isinstance(found, Exception):
            return _failed(f"onnxruntime failed: {found}")
        token_ids, scores = found
        if np.isnan(scores).any() or scores[0] == -np.inf:
            return _failed(f"the model gave the scores {scores.tolist()}")
        # The rest of the beam has the score -inf where the search found fewer hypotheses.
        filled = scores > -np.inf
        try:
            texts = [self.tokenizer.decode(ids) for ids in token_ids[filled]]
        except ValueError as error:
            return _failed(error)
        texts = (text.replace("\0", signature.REPLACEMENT) for text in texts)
        return Translation(tuple(texts), tuple(scores[filled].tolist()))


def _text_or_warning(number, translation):
    if translation.error is not None:
        logger.warning("line %d is not translated: %s", number, translation.error)
    return translation.text


def _check_task(artefact):
    """Raises unless the artefact turns text into text, and its tokenizer fits its model."""
    task, folder = artefact.manifest["task"], artefact.folder
    inputs = [value["name"] for value in artefact.manifest["inputs"]]
    if task != "translate" or inputs != [signature.SOURCE_IDS]:
        raise ArtefactError(
            f"{folder} was exported for the task {task!r} with the inputs {inputs}, and Translator "
            f"serves 'translate' from {[signature.SOURCE_IDS]}: greedy or beam search of an "
            f"encoder-decoder model. Run {artefact.model.name} with onnxruntime itself, or export "
            "it with such a search."
        )
    if artefact.tokenizer is None:
        raise ArtefactError(
            f"{folder} holds no {signature.TOKENIZER_FILE}. Export the model with its tokenizer: "
            "export_onnx(model, path, tokenizer, search)."
        )
    known, ids = artefact.manifest["vocab_size"]["source"], artefact.tokenizer.vocab_size
    if known is not None and ids > known:
        raise ArtefactError(
            f"{folder}: the tokenizer has {ids} ids and the model knows {known}. Export the model "
            "with the tokenizer that it was trained with."
        )
