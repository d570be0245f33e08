"""Translates text with an exported ONNX artefact, without TensorFlow and Keras."""

from typing import NamedTuple

from keras_transformer.export.artefact import signature
from keras_transformer.export.runtime.lines import checked_lines
from keras_transformer.export.runtime.runner import with_warnings
from keras_transformer.export.runtime.search_runner import SearchRunner
from keras_transformer.special_ids import END_ID


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


class Translator(SearchRunner):
    """Serves one exported artefact. Threads can share it, and results do not depend on that.

    What becomes of odd lines is part of the contract. They never change what the others give:

    | line | result |
    | --- | --- |
    | empty, white space only (`str.isspace`), or nothing that the tokenizer knows | one empty \
hypothesis, score 0 |
    | with a NUL character | ends there |
    | more tokens than the artefact's `limits["source_length"]`, special ones included | `error` |
    | bytes that are not UTF-8, half a surrogate pair | `error` |
    | more than 16 MiB | `error` |
    | one on which ONNX Runtime fails (out of memory), or whose scores are not numbers | `error` |

    `translate` and `translate_stream` give `""` for a line with an error and log a warning with its
    number and the reason; `n_best` and `n_best_stream` return the reason.

    Args:
        folder: str or path, what `keras_transformer.export.export_onnx` wrote. Weights stay in its
            file: replace that by another, as an export does, but do not write into it meanwhile.
            A file that changes while it is opened is an error.
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
        target_tokenizer: Tokenizer of the translations; the same, unless the artefact holds two.
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

    _task, _inputs = "translate", ([signature.SOURCE_IDS],)
    _serves = "'translate' from ['source_ids']: greedy or beam search of an encoder-decoder model"
    _end = (END_ID,)  # as in training
    _empty = Translation(("",), (0.0,))

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
        return (result.text for result in with_warnings(results, "translated"))

    def n_best(self, lines, batch_tokens=2048):
        """All hypotheses of each line, with scores: list of `Translation`. Else as `translate`."""
        return self._list(list(checked_lines(lines)), batch_tokens)

    def n_best_stream(self, lines, batch_tokens=2048, read_ahead=1024):
        """As `n_best`, lazily: iterator of `Translation`. Else as `translate_stream`."""
        return self._stream(checked_lines(lines), batch_tokens, read_ahead)

    def _result(self, row, outputs):
        token_ids, scores = self._hypotheses(outputs)
        return Translation(self._decoded(token_ids), scores)

    def _failed(self, reason):
        return Translation((), (), str(reason))
