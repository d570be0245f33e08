"""Whisper's tokens with our ids: the tokenizer, and the settings of a search.

Shapes: V our number of ids.
"""

import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_transformer.importers import mapping, pieces
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.types import Ids, StrPath

NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")  # newer and older tokenizers
# Tokens after this one stand for times.
NO_TIMES = "<|notimestamps|>"
SECONDS = 0.02  # between two of them
# Numbers of tokens of models of English only: GPT-2's pieces and more, but less than the smallest
# multilingual model. Their folders may list languages all the same, with the ids of other models.
ENGLISH_ONLY = range(50_257, 51_865)
LANGUAGE = re.compile(r"[a-z]{2,3}")


@dataclass(frozen=True)
class SpeechSettings:
    """Settings of a Whisper folder for the search, with our ids.

    Attributes:
        languages: dict from the code of a language, such as "en", to its token; empty for models
            of one language.
        suppressed: tokens that Whisper's decoder never writes.
        suppressed_first: tokens that it does not write first.
        alignment_heads: pairs of a decoder block and a head of its cross-attention, whose weights
            show the time of each token.
    """

    languages: dict[str, int]
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    alignment_heads: tuple[tuple[int, int], ...]


def make_settings(
    path: pathlib.Path,
    order: Ids,
    languages: Mapping[str, int],
    suppressed: Any,
    suppressed_first: Any,
    alignment_heads: Any,
) -> SpeechSettings:
    """Makes `SpeechSettings` from the content of a file, with Whisper's ids. `None` means none.

    Args:
        path: the file, for errors.
        order: (V,) integers, Whisper's id of each of our rows.
        languages, suppressed, suppressed_first, alignment_heads: as in `SpeechSettings`, with
            Whisper's ids. A vocabulary of an English-only model has no languages.

    Raises:
        ValueError: a value is of another type, an id is not in the vocabulary, or a language is
            the name of another token.
    """
    ours = mapping.our_ids(order)
    if len(ours) in ENGLISH_ONLY:
        languages = {}
    others = [code for code in languages if not LANGUAGE.fullmatch(code)]
    if others:
        raise ValueError(
            f"The list of languages in {path} has {others[:5]}, which are no codes such as 'en'. "
            "The ids belong to another vocabulary: copy the file of this model."
        )

    def translated(name: str, ids: Any) -> tuple[int, ...]:
        ids = [] if ids is None else ids
        if not isinstance(ids, list) or not all(type(id) is int and id in ours for id in ids):
            raise ValueError(
                f"{name} in {path} must be a list of ids of the {len(ours)} tokens. Copy it again."
            )
        return tuple(ours[id] for id in ids)

    heads = alignment_heads or []
    is_pairs = isinstance(heads, list) and all(
        isinstance(pair, list) and [type(number) for number in pair] == [int, int] for pair in heads
    )
    if not is_pairs:
        raise ValueError(f"alignment_heads in {path} must be a list of pairs. Copy it again.")
    tokens = translated("languages", list(languages.values()))
    return SpeechSettings(
        dict(zip(languages, tokens, strict=True)),
        translated("suppressed tokens", suppressed),
        translated("tokens suppressed at the start", suppressed_first),
        tuple((block, head) for block, head in heads),
    )


def speech_search(settings: SpeechSettings, tokenizer: JsonTokenizer, beam_width: int = 5) -> Any:
    """Returns a model's `SpeechSearch` with the rules for times and the suppressed tokens.

    Args:
        settings: `SpeechSettings` of the model.
        tokenizer: its tokenizer.
        beam_width: int, 1 for greedy search. Defaults to 5.

    Raises:
        ValueError: the tokenizer lacks a token of Whisper, or has another token in the place of a
            language.

    Example:

    >>> model, tokenizer = whisper.load("whisper-base")  # doctest: +SKIP
    >>> settings = whisper.read_settings("whisper-base")  # doctest: +SKIP
    >>> search = speech_search(settings, tokenizer)  # doctest: +SKIP
    """
    from keras_transformer.search.speech import SpeechSearch  # needs TensorFlow
    from keras_transformer.search.timestamps import TimestampRules

    ids = tokenizer.added_ids
    found = [ids[name] for name in NO_SPEECH if name in ids]
    if not found or NO_TIMES not in ids:
        raise ValueError(
            f"The tokenizer lacks {NO_TIMES} or {' and '.join(NO_SPEECH)}, so it is not Whisper's. "
            "Pass the tokenizer of the model's folder."
        )
    others = [code for code, id in settings.languages.items() if ids.get(f"<|{code}|>") != id]
    if others:
        raise ValueError(
            f"The tokenizer has the languages {others[:5]} at other ids than the settings. Copy "
            "all files of the folder from one model."
        )
    rules = TimestampRules(
        ids[NO_TIMES] + 1, ids[NO_TIMES], settings.suppressed, settings.suppressed_first
    )
    return SpeechSearch(
        beam_width,
        no_speech=found[0],
        languages=tuple(settings.languages.values()),
        no_times=ids[NO_TIMES],
        word_heads=settings.alignment_heads,
        allow_unknown=False,
        constraints=[rules],
    )


def language_code(name: str) -> str:
    """Returns the code of a language, such as "en", from the name of its token."""
    return name.removeprefix("<|").removesuffix("|>")


def vocabulary(folder: pathlib.Path, config: Mapping[str, Any]) -> pieces.Vocabulary:
    """Returns the tokenizer of a folder with all tokens for times."""
    return pieces.Vocabulary(lambda orders: make_tokenizer(folder, orders[0]))


def make_tokenizer(folder: StrPath, order: Ids) -> JsonTokenizer:
    """Returns the tokenizer of `tokenizer.json` with our ids and all tokens for times.

    Args:
        folder: str or path-like.
        order: (V,) integers, Whisper's id of each of our rows.
    """
    config = pieces.read_tokenizer(pathlib.Path(folder) / "tokenizer.json")
    added = [{**token, "special": True} for token in config.get("added_tokens") or []]
    ids = {token["content"]: token["id"] for token in added}
    first = ids.get(NO_TIMES, len(order)) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for id in sorted(set(range(first, 1 + max(order.tolist()))) - set(ids.values())):
        name = f"<|{(id - first) * SECONDS:.2f}|>"
        added.append({"id": id, "content": name, **flags, "special": True})
    return pieces.renumbered_json({**config, "added_tokens": added}, order)
