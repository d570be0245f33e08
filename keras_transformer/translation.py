"""Translates lines of text with a Keras model, and writes translations to train a student."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.files import checked_path
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import END_ID
from keras_transformer.text.corpora import read_lines
from keras_transformer.types import StrPath

if TYPE_CHECKING:  # it needs SentencePiece
    from keras_transformer.text.json_tokenizer import AnyTokenizer


def translate(
    search: Callable[..., Any],
    model: keras.Model,
    tokenizer: "AnyTokenizer",
    lines: Sequence[str],
    tokens_per_batch: int = 4096,
    target_tokenizer: "AnyTokenizer | None" = None,
) -> list[str]:
    """Translates lines of text with a Keras model.

    Lines of similar length are searched together. To translate without Keras, export the model.

    Args:
        search: a search, such as `BeamSearch` or `GreedySearch`.
        model: `Transformer`, or any other model that `search` supports.
        tokenizer: `Tokenizer`.
        lines: list of N strings.
        tokens_per_batch: greatest number of source tokens of a batch, padding included. A longer
            line is a separate batch. Defaults to 4096.
        target_tokenizer: `Tokenizer` of the target. Defaults to `None`: `tokenizer` for both.

    Returns:
        List of N strings, the best translation of each line; "" for a blank line, as in
        `Translator`.

    Raises:
        TypeError: `lines` is a single string.
        ValueError: `tokens_per_batch` is below 1.

    Example:

    >>> search = BeamSearch(beam_width=4, length_penalty=0.6)  # doctest: +SKIP
    >>> translate(search, model, tokenizer, ["A man rides a bicycle."])  # doctest: +SKIP
    ['Ein Mann fährt Fahrrad.']
    """
    if isinstance(lines, str):
        raise TypeError(f"lines must be a list of strings, got {lines!r:.100}. Pass [line].")
    if tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch must be at least 1, but it is {tokens_per_batch}.")
    ids = [[*row, END_ID] for row in tokenizer.encode(lines)]
    translations = [""] * len(lines)
    decode = (target_tokenizer or tokenizer).decode
    waiting = [i for i, line in enumerate(lines) if line.strip()]
    waiting.sort(key=lambda i: len(ids[i]))
    while waiting:
        # Longest lines first: if memory is too small, the first batch fails.
        rows = max(1, tokens_per_batch // len(ids[waiting[-1]]))
        batch = waiting[-rows:]
        del waiting[-rows:]
        source_ids = pad_rows([ids[i] for i in batch])  # (B, S)
        best = keras.ops.convert_to_numpy(search(model, source_ids).ids)[:, 0]  # (B, T)
        for i, text in zip(batch, decode(best), strict=True):
            translations[i] = text
    return translations


def distil(
    translate: Callable[[list[str]], Iterable[str]],
    source: StrPath | Sequence[str],
    path: StrPath,
    lines_per_call: int = 1000,
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
        translate: function that returns as many lines as it is passed.
        source: file of N lines, plain or gzip, or list of N strings.
        path: file to write, one line for each source line.
        lines_per_call: lines passed to `translate` at once. Defaults to 1000.

    Returns:
        Number of lines that this call wrote; 0 if the file was complete.

    Raises:
        ValueError: `path` has more lines than `source`, `translate` returns more or fewer lines
            than it was passed, or `lines_per_call` is below 1.

    Example:

    >>> teacher = Translator("teacher")  # doctest: +SKIP
    >>> kt.distil(teacher.translate, "train.en", "train.distilled.de")  # doctest: +SKIP
    29000
    """
    lines = source if isinstance(source, Sequence) and not isinstance(source, str) else None
    lines = read_lines(source) if lines is None else lines
    path = checked_path(path)
    if lines_per_call < 1:
        raise ValueError(f"lines_per_call must be at least 1, but it is {lines_per_call}.")
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
        for start in range(first, len(lines), lines_per_call):
            part = list(lines[start : start + lines_per_call])
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
