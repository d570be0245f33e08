"""Translation of lines of text with a Keras model and a search."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import END_ID

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
        List of N strings, the best translation of each line.

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
    waiting = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    while waiting:
        # The longest lines first: if memory is too small, this shows immediately.
        rows = max(1, tokens_per_batch // len(ids[waiting[-1]]))
        batch = waiting[-rows:]
        del waiting[-rows:]
        source_ids = pad_rows([ids[i] for i in batch])  # (B, S)
        best = keras.ops.convert_to_numpy(search(model, source_ids).ids)[:, 0]  # (B, T)
        for i, text in zip(batch, decode(best), strict=True):
            translations[i] = text
    return translations
