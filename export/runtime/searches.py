"""Serves models with a search: `Translator` and `Generator`.

One `session.run` for each batch returns ids and scores. In the layout "loop", encoder, decoder and
search are in one graph.

Shapes: `W` beam width, `T` tokens of the longest hypothesis.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import Artefact
from keras_transformer.export.artefact.results import (
    Alternative,
    Details,
    Generation,
    ResultMaker,
    Row,
    Translation,
)
from keras_transformer.export.runtime.glossary_runner import GlossaryRunner, hint_of
from keras_transformer.export.runtime.hypotheses import DetailsMaker, find_alternatives
from keras_transformer.export.runtime.input_readers import InputReader
from keras_transformer.export.runtime.runner import ALL
from keras_transformer.export.runtime.streaming import SearchRunner, prompt_ids
from keras_transformer.export.runtime.text_readers import LineReader
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array

# The outputs of a search that have an axis of hypotheses.
BY_HYPOTHESIS = (
    signature.TOKEN_IDS,
    signature.SCORES,
    signature.TOKEN_SCORES,
    signature.ALIGNMENTS,
)


class TranslationMaker:
    """Makes a `Translation` from the hypotheses of a row: ids (W, T) and scores (W,)."""

    empty: ClassVar[Any] = Translation(("",), (0.0,))

    def __init__(self, artefact: Artefact):
        self._decode = artefact.target_tokenizer.decode
        self._samples = any(x["name"] == signature.SEED for x in artefact.manifest["inputs"])
        self._hint = hint_of(artefact.manifest)
        # Tokenizers of the library `tokenizers` do not mark the spaces between words.
        tokenizers = artefact.tokenizer, artefact.target_tokenizer
        self._details = None
        if all(isinstance(tokenizer, Tokenizer) for tokenizer in tokenizers):
            self._details = DetailsMaker(*tokenizers)

    def result(self, row: Row, outputs: dict[str, Array]) -> Translation:
        token_ids, texts, scores, details = self._hypotheses(row, outputs)
        return Translation(texts, scores, None, details)

    def _hypotheses(
        self, row: Row, outputs: dict[str, Array]
    ) -> tuple[Array, tuple[str, ...], tuple[float, ...], tuple[Details, ...]]:
        """Returns ids, texts, scores and details of the hypotheses that the search has found.

        Several sequences of pieces may have one text. A list of the best texts has it once, with
        its best score. Samples stay as they were drawn.
        """
        scores = outputs[signature.SCORES]
        if np.isnan(scores).any() or scores[0] == -np.inf:
            hint = "" if np.isnan(scores).any() else self._hint
            raise ValueError(f"the model gave the scores {scores.tolist()}{hint}")
        filled = np.flatnonzero(scores > -np.inf)  # -inf: a hypothesis that was not found
        texts = self.texts(outputs[signature.TOKEN_IDS][filled])
        if not self._samples:
            first = {text: place for place, text in reversed(list(enumerate(texts)))}
            filled, texts = filled[sorted(first.values())], tuple(dict.fromkeys(texts))
        found = {name: outputs[name][filled] for name in BY_HYPOTHESIS if name in outputs}
        token_ids, details = found.pop(signature.TOKEN_IDS), []
        if self._details is not None and found.keys() - {signature.SCORES}:
            source_ids = row.inputs.get(signature.SOURCE_IDS, ())
            for i, ids in enumerate(token_ids):
                parts = {name: array[i] for name, array in found.items()}
                details.append(self._details.details(source_ids, ids, parts))
        return token_ids, texts, tuple(scores[filled].tolist()), tuple(details)

    def texts(self, rows: Iterable[Array]) -> tuple[str, ...]:
        """Returns the text of each row of ids."""
        return tuple([self._decode(ids).replace("\0", signature.REPLACEMENT) for ids in rows])


class GenerationMaker(TranslationMaker):
    """Makes a `Generation`, for which it also decodes the prompt's ids and new ids together."""

    empty: ClassVar[Any] = Generation(("",), (0.0,), None, ("",))

    def result(self, row: Row, outputs: dict[str, Array]) -> Generation:
        token_ids, texts, scores, details = self._hypotheses(row, outputs)
        prompt = prompt_ids(row)
        full = self.texts(np.r_[prompt, ids] for ids in token_ids)
        (prompt_text,) = self.texts([prompt])
        rows = tuple(tuple(ids[ids != PAD_ID].tolist()) for ids in token_ids)
        return Generation(texts, scores, None, full, details, prompt_text, rows)


class Translator(GlossaryRunner):
    """Serves an exported translation model. Threads can share it without an effect on results.

    The treatment of unusual lines is part of the contract. They never change other results:

    | line | result |
    | --- | --- |
    | empty, white space only (`str.isspace`), or without a piece | one empty hypothesis, score 0 |
    | with a NUL character | its text ends there |
    | more tokens than the artefact's `limits["source_length"]`, special ones included | `error` |
    | bytes that are not UTF-8, half a surrogate pair | `error` |
    | more than 16 MiB | `error` |
    | ONNX Runtime fails on it (out of memory), or its scores are not numbers | `error` |

    `translate` and `translate_stream` return `""` for a line with an error and log a warning with
    its number and the reason; `n_best` and `n_best_stream` return the reason.

    Args:
        folder: str or path, the folder that `keras_transformer.export.export_onnx` wrote. Weights
            stay in the model's file. You may replace this file, as an export does, but do not
            write into it while it is served. A file that changes while it is opened is an error.
        providers: list of ONNX Runtime's execution providers, best first, each a name or a pair of
            name and options; None (default) takes CUDA if this onnxruntime has it and the
            precision suits it, else the CPU. The first one must start and run operators of the
            model: there is no silent fallback.
        threads: int, threads that compute a batch; None (default) takes every core, or one if there
            are several workers. On a CPU, a search with a file of at most 20 MiB takes one, because
            threads wait for each other in its small operations.
        workers: int, batches that are computed at the same time. None (default) takes 1; or a
            worker for each core if the search is small and `threads` is None, which divide each
            batch. For many lines on a CPU, one worker per core is faster than one thread per core.
            A single line gains from threads only.
        arena: bool, keep freed memory for the next call. Faster; memory stays at its peak.
        spinning: bool, let idle threads wait actively for ten microseconds. Faster; False takes
            less processor time.

    Attributes:
        provider: str, the execution provider that runs. Also logged once, at level INFO.
        manifest: dict, the content of `artefact.json`.
        tokenizer: Tokenizer.
        target_tokenizer: Tokenizer of the translations; the same, unless the artefact holds two.
        session: onnxruntime.InferenceSession or `StepsSession`, for programs with their own ids.

    Raises:
        ArtefactError: the folder is missing, damaged, foreign, of a newer format, or holds no
            translation search with its tokenizer.
        ProviderError: a provider is missing, did not start, runs nothing of the model, or does not
            suit the precision.
        ValueError: `threads` or `workers` is less than 1, or more than 16 times the cores.

    Example:

    >>> translator = Translator("out/onnx")  # doctest: +SKIP
    >>> translator.translate(["A man rides a bicycle."])  # doctest: +SKIP
    ['Ein Mann fährt Fahrrad.']
    """

    task = "translate"
    serves = "'translate' from ['source_ids']: a search of an encoder-decoder model"
    takes: ClassVar[tuple[list[str], ...] | None] = (
        [signature.SOURCE_IDS],
        [signature.SOURCE_IDS, signature.SEED],
    )
    done = "translated"

    def _reader_and_result_maker(self, artefact: Artefact) -> tuple[InputReader, ResultMaker]:
        self._check(artefact)
        return LineReader(artefact, end=(END_ID,)), TranslationMaker(artefact)  # as in training

    def translate(
        self, lines: Iterable[str | bytes], tokens_per_batch: int = 2048, **options: Any
    ) -> list[str]:
        """Returns the best translation of each line.

        Args:
            lines: iterable of str, or of bytes in UTF-8. A newline at the end is removed.
            tokens_per_batch: int, maximum number of source tokens of a batch, padding included. A
                longer line is a batch alone.
            **options: options of the search that the artefact takes, see `options` of its manifest.
                `max_length` and `length_penalty` always work with a beam search, and `seed` with
                `Sampling`, see `Generator`. The others need
                `options` at the export: `min_length`, `beam_width`, `target_prefix`. Arguments of
                constraints, such as `forbidden_words`, keep their names. A number or a text applies
                to all lines. `max_length`, `min_length` and texts may also be a list with one for
                each line. Texts become tokens of the target. All default to the values of the
                exported search. With the constraint `Terms`, `terms`
                are phrases that must appear: a list for all lines, or one for each line. `glossary`
                is a `Glossary`, a mapping from source to target phrases, the path of a file, or a
                list with one for each line. With `alignments` and `target_prefix`, its target
                phrases take the place of the words that are aligned to their source phrases. With
                `Terms` alone, they are terms of the lines with their source phrases.

        Returns:
            List of str, in the order of `lines`.

        Raises:
            TypeError: if `lines` is one string, or holds something that is neither str nor bytes,
                or if an option has another type.
            ValueError: if `tokens_per_batch` is less than 1, if an option is out of range, or if
                the artefact does not take it.

        >>> translator.translate(["A man rides."], max_length=20)  # doctest: +SKIP
        >>> translator.translate(["A man rides."], target_prefix="Der")  # doctest: +SKIP
        >>> translator.translate(["A man rides."], terms=[["Mensch"]])  # doctest: +SKIP
        >>> translator.translate(["A man rides."], glossary="words.tsv")  # doctest: +SKIP
        """
        return list(self.texts(lines, tokens_per_batch=tokens_per_batch, read_ahead=ALL, **options))

    def translate_stream(
        self,
        lines: Iterable[str | bytes],
        tokens_per_batch: int = 2048,
        read_ahead: int = 1024,
        **options: Any,
    ) -> Iterator[str]:
        """Translates lazily: reads at most `read_ahead` lines beyond the one that it yields.

        The lines read ahead are sorted by length. More lines make fuller batches. With 1, each
        line is translated before the next one is read.

        Returns:
            Iterator of str.
        """
        return self.texts(
            lines, tokens_per_batch=tokens_per_batch, read_ahead=read_ahead, **options
        )

    def n_best(
        self, lines: Iterable[str | bytes], tokens_per_batch: int = 2048, **options: Any
    ) -> list[Translation]:
        """Returns all hypotheses of each line with scores. Otherwise as `translate`.

        If several sequences of pieces have one text, it is there once, with its best score.

        If the artefact was exported with a search that has `token_scores` or `alignments`, a
        `Translation` has the `details` of each hypothesis: pieces, words, scores of both, and the
        alignment of words.

        >>> (best,) = translator.n_best(["A man rides a bicycle."])  # doctest: +SKIP
        >>> best.details[0].pharaoh  # doctest: +SKIP
        '0-0 1-1 2-2 4-3'
        """
        return list(
            self.results(lines, tokens_per_batch=tokens_per_batch, read_ahead=ALL, **options)
        )

    def n_best_stream(
        self,
        lines: Iterable[str | bytes],
        tokens_per_batch: int = 2048,
        read_ahead: int = 1024,
        **options: Any,
    ) -> Iterator[Translation]:
        """Yields the results of `n_best` lazily. Otherwise as `translate_stream`."""
        return self.results(
            lines, tokens_per_batch=tokens_per_batch, read_ahead=read_ahead, **options
        )

    def stream(self, line: str | bytes, **options: Any) -> Iterator[str]:
        """Yields the best translation of a line, in parts, as the search finds them.

        See `Generator.stream`. The parts of a beam search are shared by all its hypotheses.

        >>> list(translator.stream("A man rides a bicycle."))  # doctest: +SKIP
        ['Ein', ' Mann', ' fährt', ' Fahrrad', '.']
        """
        return (part for part in self.stream_steps(line, **options) if part)

    def alternatives(
        self, line: str | bytes, prefix: str = "", count: int | None = None
    ) -> list[Alternative]:
        """Returns the most likely next words after the beginning of a translation.

        The artefact's search must be a beam search, exported with `options=("target_prefix",)`.

        Args:
            line: str, or bytes in UTF-8, the source.
            prefix: str, the beginning of the translation. If it ends with a space, its last word is
                complete; otherwise the next token may continue it. Defaults to "": none.
            count: int, the maximum number of alternatives. Defaults to `None`: the beam width.

        Returns:
            List of `Alternative`, the most likely next token first; empty for a line without text.

        Raises:
            ValueError: the line is refused, `count` is not from 1 to the beam width, or the
                artefact has another search or no `target_prefix`.

        >>> found = translator.alternatives("A man rides.", "Ein ")  # doctest: +SKIP
        >>> [each.word for each in found]  # doctest: +SKIP
        ['Mann', 'Mensch', 'Herr', 'Typ']
        """
        search = self.manifest["search"]
        width = search["config"].get("beam_width")
        if width is None:
            raise ValueError(
                f"Alternatives are the hypotheses of a beam search, and the artefact has a "
                f"{search['class_name']}. Export it with BeamSearch."
            )
        count = width if count is None else count
        if not 1 <= count <= width:
            raise ValueError(f"`count` must be from 1 to {width}, the beam width, got {count}.")
        self._options.read({"target_prefix": prefix})  # raises if the artefact does not take it
        rows, refused = self._reader.read([line])
        if refused:
            raise ValueError(refused[0])
        if not rows:
            return []

        def run(prefixes: list[list[int]], **options: Array) -> tuple[Array, Array]:
            source_ids = np.array([rows[0].inputs[signature.SOURCE_IDS]] * len(prefixes), np.int32)
            inputs = {signature.SOURCE_IDS: source_ids, "target_prefix": pad_rows(prefixes)}
            names = [signature.TOKEN_IDS, signature.SCORES]
            return tuple(self.session.run(names, {**inputs, **options}))

        return find_alternatives(run, self.target_tokenizer, prefix, count)


class Generator(SearchRunner):
    """Serves an exported language model: greedy search, beam search or sampling.

    The model reads the begin token and the pieces of the prompt. Unusual lines, threads, providers
    and streams are as in `Translator`. So a prompt without text has one empty continuation of score
    0. To generate without a prompt, run `session` with the begin token alone, `[[2]]`.

    An artefact that samples takes a seed. The seed, the prompt's tokens and the number of the
    sample determine a text. Other prompts of a call, their order, batches, workers and threads have
    no effect, and equal prompts get equal texts. Without a seed, here and in the exported search,
    each call draws one for all its prompts.

    Arguments and errors are the same as in `Translator`.

    Attributes:
        provider, manifest, tokenizer, session: as in `Translator`.

    Example:

    >>> generator = Generator("out/story")  # doctest: +SKIP
    >>> generator.generate(["Once upon a time"], seed=7)  # doctest: +SKIP
    ['there was a fox.']
    """

    task = "generate"
    serves = "'generate': greedy search, beam search or sampling of a language model"
    takes: ClassVar[tuple[list[str], ...] | None] = (
        [signature.SOURCE_IDS],
        [signature.SOURCE_IDS, signature.SEED],
    )
    done = "continued"

    def _reader_and_result_maker(self, artefact: Artefact) -> tuple[InputReader, ResultMaker]:
        self._check(artefact)
        return LineReader(artefact, begin=(BEGIN_ID,)), GenerationMaker(artefact)

    def generate(
        self,
        prompts: Iterable[str | bytes],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        **options: Any,
    ) -> list[str]:
        """Returns the best continuation of each prompt; with sampling, its most likely sample.

        Args:
            prompts: iterable of str, or of bytes in UTF-8. A line end at the end is removed; write
                two to keep one.
            seed: int from 0 to 2^31 - 2, for an artefact that samples. Defaults to `None`: the
                seed of the exported search, or if it has none, a random one for each call.
            tokens_per_batch: int, maximum number of prompt tokens of a batch, padding included. A
                longer prompt is a batch alone.
            **options: as in `Translator.translate`. An artefact that samples always takes
                `max_length` and `temperature`; `top_k` and `top_p` need `options` at the export,
                unless the exported search has them.

        Returns:
            List of str, in the order of `prompts`: the continuations, without the prompts.

        Raises:
            TypeError: `prompts` is one string, or holds something that is neither str nor bytes;
                or `seed` is not an integer.
            ValueError: `tokens_per_batch` is less than 1, or `seed` is out of range or passed to an
                artefact that does not sample.
        """
        return list(self.texts(prompts, seed, tokens_per_batch, ALL, **options))

    def generate_stream(
        self,
        prompts: Iterable[str | bytes],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        read_ahead: int = 1024,
        **options: Any,
    ) -> Iterator[str]:
        """Generates lazily: reads at most `read_ahead` prompts beyond the one that it yields.

        The prompts read ahead are sorted by length. All prompts share one seed.

        Returns:
            Iterator of str.
        """
        return self.texts(prompts, seed, tokens_per_batch, read_ahead, **options)

    def n_best(
        self,
        prompts: Iterable[str | bytes],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        **options: Any,
    ) -> list[Generation]:
        """Returns all continuations of each prompt with scores. Otherwise as `generate`."""
        return list(self.results(prompts, seed, tokens_per_batch, ALL, **options))

    def n_best_stream(
        self,
        prompts: Iterable[str | bytes],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        read_ahead: int = 1024,
        **options: Any,
    ) -> Iterator[Generation]:
        """Yields the results of `n_best` lazily. Otherwise as `generate_stream`."""
        return self.results(prompts, seed, tokens_per_batch, read_ahead, **options)

    def stream(
        self,
        prompt: str | bytes,
        seed: int | None = None,
        *,
        with_prompt: bool = False,
        **options: Any,
    ) -> Iterator[str]:
        """Yields the continuation of a prompt, in parts, as the search finds them.

        Together the parts are the text of `generate`, with the same tokens. The artefact needs the
        layout "steps". A prompt takes one step for each of its tokens; the first part comes with
        the first token after it. A beam search, or several samples, yield the text shared by all
        hypotheses that can still win, and the rest at the end. A part ends with a complete
        character.

        Close the iterator to stop before the text ends.

        Args:
            prompt: str, or bytes in UTF-8.
            seed: as in `generate`.
            **options: as in `generate`.
            with_prompt: bool, whether the first part is the prompt, as in `Generation.full_text`:
                then the space between both is right. Defaults to `False`.

        Returns:
            Iterator of str, none of them empty. Nothing for a prompt without text.

        Raises:
            ArtefactError: the artefact holds its search in one file.
            ValueError: the prompt or an option is refused, or, at the end, the scores of the model
                are not numbers.
            TypeError: `prompt` is neither str nor bytes, or an option has another type.

        >>> for part in generator.stream("Once upon a time", seed=7):  # doctest: +SKIP
        ...     print(part, end="", flush=True)
        there was a fox.
        """
        parts = self.stream_steps(prompt, seed, with_prompt=with_prompt, **options)
        return (part for part in parts if part)
