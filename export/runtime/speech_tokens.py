"""Whisper's tokens for a transcription, by name from the tokenizer of an artefact."""

from collections.abc import Sequence
from typing import Any

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.special_ids import BEGIN_ID, END_ID, UNKNOWN_ID
from keras_transformer.text.json_tokenizer import JsonTokenizer

SECONDS = 0.02  # between two time tokens


class SpeechTokens:
    """The tokens of a speech model.

    Args:
        manifest: dict, manifest of an artefact with a `SpeechSearch`.
        tokenizer: its tokenizer.

    Attributes:
        languages: dict from the code of a language, such as "en", to its token.
        first_time: int, the token of second 0. All larger ids are later times.

    Raises:
        ArtefactError: the artefact has another search, or its tokenizer lacks a token of Whisper.
    """

    def __init__(self, manifest: dict[str, Any], tokenizer: Any):
        search = manifest["search"]
        if search["class_name"] != "SpeechSearch" or not isinstance(tokenizer, JsonTokenizer):
            raise ArtefactError(
                f"This artefact has the search {search['class_name']} and cannot transcribe files. "
                "Export a Whisper model with SpeechSearch and its tokenizer: "
                "python -m keras_transformer.importers whisper FOLDER out --export onnx."
            )
        self._tokenizer, self._ids = tokenizer, tokenizer.added_ids
        self.first_time: int = self._id("<|notimestamps|>") + 1
        names = {id: name.strip("<|>") for name, id in self._ids.items()}
        known = search["config"]["languages"]
        self.languages: dict[str, int] = {names[id]: id for id in known}
        self._first_special = min(id for id in self._ids.values() if id > END_ID)

    def _id(self, name: str) -> int:
        if name not in self._ids:
            raise ArtefactError(
                f"The tokenizer lacks {name}, so it is not Whisper's. Import the model again."
            )
        return self._ids[name]

    def start(self, language: str | None, task: str, before: Sequence[int]) -> list[int]:
        """Returns the start tokens of a window.

        Args:
            language: its code; with `None` the search detects it.
            task: "transcribe" or "translate".
            before: the tokens of the text before the window.
        """
        previous = [self._id("<|startofprev|>"), *before] if before else []
        if not self.languages:  # an English-only model
            return [*previous, BEGIN_ID]
        spoken = UNKNOWN_ID if language is None else self.languages[language]
        return [*previous, BEGIN_ID, spoken, self._id(f"<|{task}|>")]

    def is_time(self, token: int) -> bool:
        """Returns whether a token stands for a time."""
        return token >= self.first_time

    def is_text(self, token: int) -> bool:
        """Returns whether a token is part of the text."""
        return END_ID < token < self._first_special

    def seconds(self, token: int) -> float:
        """Returns the time of a token, from the start of its window."""
        return (token - self.first_time) * SECONDS

    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without times."""
        text = self._tokenizer.decode([token for token in tokens if self.is_text(token)])
        return text.replace("\0", signature.REPLACEMENT)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text."""
        return self._tokenizer.encode(text)
