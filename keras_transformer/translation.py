"""Translates lines and continues prompts with a Keras model; writes text to train a student."""

import contextlib
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.call_options import CALL_OPTIONS, CONSTRAINT_OPTIONS, MOST_SEED
from keras_transformer.decoding import is_causal
from keras_transformer.files import checked_path
from keras_transformer.padding import check_rows, pad_rows, pad_words
from keras_transformer.special_ids import BEGIN_ID, END_ID
from keras_transformer.text.corpora import read_lines
from keras_transformer.text.lines import text_of
from keras_transformer.text.vocabularies import (
    check_tokenizer,
    check_tokenizers,
    of_both_sides,
)
from keras_transformer.text.words import OptionWords
from keras_transformer.types import AnyTokenizer, StrPath

LINES_PER_CALL = 1000  # lines that `distil` passes to the teacher at once


def translate(
    search: Callable[..., Any],
    model: keras.Model,
    tokenizer: AnyTokenizer,
    lines: Sequence[str],
    tokens_per_batch: int = 4096,
    target_tokenizer: AnyTokenizer | None = None,
    **options: Any,
) -> list[str]:
    """Translates lines of text with a Keras model.

    Lines of similar length are searched together. To translate without Keras, export the model.

    Args:
        search: a search, such as `BeamSearch` or `GreedySearch`.
        model: `Transformer`, or any other model with a source of text that `search` supports.
        tokenizer: `Tokenizer`.
        lines: list of N strings. As in `Translator`, a line end at the end is removed, and a line
            ends at a NUL character.
        tokens_per_batch: greatest number of source tokens of a batch, padding included. A longer
            line is a separate batch. Defaults to 4096.
        target_tokenizer: `Tokenizer` of the target. Defaults to `None`: `tokenizer` for both.
        **options: options of the search's call, such as `max_length`. An array with one row for
            each line gives each line its own. Those that hold ids also take texts, as in
            `Translator`: `target_prefix` one text or one for each line, and `forbidden_words` and
            `terms` a list of words for all lines, or one for each line.

    Returns:
        List of N strings, the best translation of each line; "" for a blank line, as in
        `Translator`.

    Raises:
        TypeError: `lines` is a single string, or an argument has the place of another.
        ValueError: `tokens_per_batch` is below 1, the model is a language model, a tokenizer does
            not belong to it, an option has neither one row nor N, or a word of one has no pieces.

    Example:

    >>> search = BeamSearch(beam_width=4, length_penalty=0.6)  # doctest: +SKIP
    >>> translate(search, model, tokenizer, ["A man rides a bicycle."])  # doctest: +SKIP
    ['Ein Mann fährt Fahrrad.']
    """
    _check_places(search, model, tokenizer)
    if is_causal(model):
        raise ValueError(
            f"{type(model).__name__} continues text and translates none. Use kt.generate("
            "search, model, tokenizer, prompts)."
        )
    tokenizers = of_both_sides(model, tokenizer, target_tokenizer)
    return _best_texts(search, model, tokenizers, lines, (), (END_ID,), tokens_per_batch, options)


def generate(
    search: Callable[..., Any],
    model: keras.Model,
    tokenizer: AnyTokenizer,
    prompts: Sequence[str],
    tokens_per_batch: int = 2048,
    **options: Any,
) -> list[str]:
    """Continues prompts with a language model.

    The tokens are the same as in `Generator`, which continues prompts without Keras: the model
    reads the begin token and the pieces of the prompt. Prompts of similar length are searched
    together.

    Args:
        search: a search, such as `Sampling` or `GreedySearch`.
        model: `CausalTransformer`, or any other language model that `search` supports.
        tokenizer: `Tokenizer`.
        prompts: list of N strings. As in `Generator`, a line end at the end is removed; write two
            to keep one. A prompt ends at a NUL character.
        tokens_per_batch: greatest number of prompt tokens of a batch, padding included. A longer
            prompt is a separate batch. Defaults to 2048.
        **options: options of the search's call, such as `max_length`, `temperature` or `seed`. An
            array with one row for each prompt gives each prompt its own. Those that hold ids also
            take texts, as in `translate`. Without a seed, each call draws one for all its prompts.

    Returns:
        List of N strings, the best continuation of each prompt, without the prompt; "" for a blank
        prompt. To generate from nothing, search the begin token alone: `search(model, [[2]])`.

    Raises:
        TypeError: `prompts` is a single string, or an argument has the place of another.
        ValueError: `tokens_per_batch` is below 1, the model is no language model, the tokenizer
            does not belong to it, an option has neither one row nor N, or a word of one has no
            pieces.

    Example:

    >>> search = Sampling(temperature=0.8, top_k=50)  # doctest: +SKIP
    >>> generate(search, model, tokenizer, ["Once upon"], max_length=20)  # doctest: +SKIP
    ['a time there was a fox.']
    """
    _check_places(search, model, tokenizer)
    if not is_causal(model):
        raise ValueError(
            f"{type(model).__name__} is no language model, so it continues no text. Use "
            "kt.translate(search, model, tokenizer, lines)."
        )
    draws = "seed" in getattr(search, "options", ()) and search.seed is None
    if draws and options.get("seed") is None:
        options["seed"] = secrets.randbelow(MOST_SEED + 1)
    tokenizers, begin = of_both_sides(model, tokenizer), (BEGIN_ID,)
    return _best_texts(search, model, tokenizers, prompts, begin, (), tokens_per_batch, options)


def _check_places(search: Any, model: Any, tokenizer: Any) -> None:
    """Raises `TypeError` for arguments in another order than search, model, tokenizer, lines."""
    if not callable(search) or isinstance(search, keras.Model):
        raise TypeError(
            f"search must be a search, such as BeamSearch(4), but {type(search).__name__} was "
            "passed. The order is search, model, tokenizer, lines."
        )
    if hasattr(model, "call_defaults") or isinstance(model, str | Sequence):
        raise TypeError(
            f"model must be a model, such as a Transformer, but {type(model).__name__} was passed. "
            "The order is search, model, tokenizer, lines."
        )
    check_tokenizer(tokenizer)


def _best_texts(
    search: Callable[..., Any],
    model: Any,
    tokenizers: dict[str, Any],
    lines: Sequence[str],
    begin: tuple[int, ...],
    end: tuple[int, ...],
    tokens_per_batch: int,
    options: dict[str, Any],
) -> list[str]:
    """Returns the text of the best hypothesis of each line, "" for a blank one.

    Args:
        search, model, tokens_per_batch: as in `translate`.
        tokenizers: the tokenizers by side.
        lines: N strings.
        begin, end: ids before and after the pieces of a line.
        options: options of the search's call.
    """
    if isinstance(lines, str):
        raise TypeError(f"Pass a list of strings, [text], not the string {lines!r:.100}.")
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch must be at least 1, but it is {tokens_per_batch}.")
    check_tokenizers(model, tokenizers)
    lines = list(map(text_of, lines))
    pieces = tokenizers["source"].encode(lines)
    ids = [[*begin, *row, *end] for row in pieces]
    options = {name: _ids_of(name, x, tokenizers["target"]) for name, x in options.items()}
    by_line = _options_of_lines(options, len(ids))
    texts = [""] * len(ids)
    waiting = [i for i, row in enumerate(pieces) if lines[i].strip() and {*row} - {BEGIN_ID}]
    waiting.sort(key=lambda i: len(ids[i]))
    while waiting:
        # Longest lines first: if memory is too small, the first batch fails.
        rows = max(1, tokens_per_batch // len(ids[waiting[-1]]))
        batch = waiting[-rows:]
        del waiting[-rows:]
        source_ids = pad_rows([ids[i] for i in batch])  # (B, S)
        own = {name: array[batch] for name, array in by_line.items()}
        found = search(model, source_ids, **{**options, **own})
        best = keras.ops.convert_to_numpy(found.ids)[:, 0]  # (B, T)
        scores = getattr(found, "scores", best)  # another search may have none
        missing = np.isneginf(keras.ops.convert_to_numpy(scores).reshape(len(batch), -1)[:, 0])
        for i in np.array(batch)[missing]:
            warnings.warn(
                f"Line {i} has no output: none fulfils all constraints, min_length and max_length.",
                stacklevel=3,
            )
        for i, text in zip(batch, tokenizers["target"].decode(best), strict=True):
            texts[i] = text
    return texts


def _ids_of(name: str, value: Any, tokenizer: AnyTokenizer) -> Any:
    """Returns the ids for texts in the place of an option's ids; other values as they are."""
    option = CALL_OPTIONS.get(name) or CONSTRAINT_OPTIONS.get(name)
    texts = [value] if isinstance(value, str) else value
    if option is None or option.rank < 2 or not isinstance(texts, list | tuple):
        return value
    if option.rank == 2:
        return pad_rows(tokenizer.encode(list(texts))) if texts and _are_texts(texts) else value
    lines = [texts] if _are_texts(texts) else texts  # the words of all lines, or of each
    if not all(isinstance(line, list | tuple) and _are_texts(line) for line in lines):
        return value
    words = OptionWords(tokenizer)
    return pad_words([[ids for text in line for ids in words(name, text)] for line in lines])


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _options_of_lines(options: dict[str, Any], count: int) -> dict[str, Any]:
    """Returns the options that have a row for each of `count` lines, as arrays."""
    options = {name: value for name, value in options.items() if value is not None}
    for name, value in options.items():
        check_rows(value, name)
    arrays = {name: np.asarray(value) for name, value in options.items()}
    arrays = {name: array for name, array in arrays.items() if array.ndim and len(array) != 1}
    for name, array in arrays.items():
        if len(array) != count:
            raise ValueError(
                f"{name} has {len(array)} rows, but there are {count} lines. Pass one row for all, "
                "or one for each line."
            )
    return arrays


def distil(
    translate: Callable[[list[str]], Iterable[str]],
    source: StrPath | Sequence[str],
    path: StrPath,
) -> int:
    """Writes a teacher's translation of each source line, as training text for a student.

    Sequence-level distillation, section 3.2 of Kim and Rush 2016 (arXiv 1606.07947): the student
    learns the teacher's best hypothesis of a beam search instead of the reference. A small student
    trained with `translation_batches(source, path, tokenizer)` often needs no beam search itself.

    The teacher is any function from lines to lines: `Translator("folder").translate` of an exported
    model (the fastest), or `functools.partial(translate, search, model, tokenizer)` of a Keras
    model, which may be an `Ensemble`.

    If a run is interrupted, the same call continues after the last complete line of the file. A
    failure of the machine, such as too little memory, also interrupts a `Translator`, which
    otherwise returns empty lines then.

    Args:
        translate: function that returns as many lines as it is passed, at most 1,000 at once.
        source: file of N lines, plain or gzip, or list of N strings.
        path: file to write, one line for each source line.

    Returns:
        Number of lines that this call wrote; 0 if the file was complete.

    Raises:
        ValueError: `path` has more lines than `source`, or `translate` returns more or fewer lines
            than it was passed.

    Example:

    >>> teacher = Translator("teacher")  # doctest: +SKIP
    >>> kt.distil(teacher.translate, "train.en", "train.distilled.de")  # doctest: +SKIP
    29000
    """
    lines = source if isinstance(source, Sequence) and not isinstance(source, str) else None
    lines = read_lines(source) if lines is None else lines
    path = checked_path(path)
    with open(path, "a+b") as file, _machine_errors(getattr(translate, "__self__", None)):
        file.seek(0)
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        first = whole.count(b"\n")
        if first > len(lines):
            raise ValueError(
                f"{path} has {first} lines, but there are {len(lines)} source lines. It belongs to "
                "another source: pass another path, or delete it."
            )
        file.truncate(len(whole))  # drops a line that was cut off
        for start in range(first, len(lines), LINES_PER_CALL):
            part = list(lines[start : start + LINES_PER_CALL])
            texts = list(translate(part))
            if len(texts) != len(part):
                raise ValueError(
                    f"translate must return one line for each of {len(part)} lines, but it "
                    f"returned {len(texts)}."
                )
            rows = [" ".join(text.split("\n")) + "\n" for text in texts]
            file.write("".join(rows).encode())
            file.flush()
    return len(lines) - first


@contextlib.contextmanager
def _machine_errors(runner: Any) -> Iterator[None]:
    """Makes a runner of `keras_transformer.export.runtime` raise errors of the machine."""
    before = getattr(runner, "raises_machine_errors", None)
    if before is None:
        yield
        return
    runner.raises_machine_errors = True
    try:
        yield
    finally:
        runner.raises_machine_errors = before
