"""Transcribes sound files of any length with a Whisper model, window by window.

The procedure is that of OpenAI's `transcribe` (arXiv 2212.04356, section 4.5). A window of 30
seconds is decoded. The times that the model writes divide it into segments, and the next window
starts where the last complete segment ends.

The last window is shorter than the others. OpenAI's `transcribe` and faster-whisper fill it with
features of 0, not with the features of silence. So does this module, and the tokens are equal.

Shapes: P start tokens, T generated tokens.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.transcripts import Segment
from keras_transformer.export.runtime.features import FRAMES_PER_SECOND, FeatureReader
from keras_transformer.export.runtime.speech_tokens import SECONDS, TASKS, SpeechTokens
from keras_transformer.special_ids import END_ID, PAD_ID
from keras_transformer.types import Array, StrPath

FEATURES = "features"
FRAMES_PER_TIME = round(SECONDS * FRAMES_PER_SECOND)  # features between two tokens of times


@dataclass(frozen=True)
class SpeechOptions:
    """Options of a transcription, with OpenAI's defaults.

    Args:
        language: code of the spoken language, such as "de". Defaults to `None`: detected in the
            first window.
        task: "transcribe", or "translate" to English. Defaults to "transcribe".
        initial_prompt: text before the first window, such as names to expect. Defaults to none.
        condition_on_previous_text: whether each window is decoded as the continuation of the text
            before. `False` is less likely to repeat errors. Defaults to `True`.
        temperatures: the first one decodes each window; the others, in turn, decode windows whose
            text fails a threshold. 0 is the search of the artefact, more is sampling.
        compression_ratio_threshold: texts with a larger ratio fail: they repeat themselves.
            Defaults to 2.4; `None` for no limit.
        log_probability_threshold: texts with a smaller average log-probability fail. Defaults to
            -1; `None` for no limit.
        no_speech_threshold: a window with a larger probability of no speech, whose text fails the
            threshold above, is skipped. Defaults to 0.6; `None` to skip none.
        prompt_reset_on_temperature: text of a larger temperature is no prompt. Defaults to 0.5.
        seed: int, of sampling. Defaults to 0.

    Raises:
        ValueError: a task that there is not, or no temperatures.
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
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"`task` must be one of {TASKS}, got {self.task!r}.")
        if not self.temperatures or min(self.temperatures) < 0:
            raise ValueError(
                f"`temperatures` must be numbers of at least 0, got {self.temperatures!r}."
            )


class Decoded(NamedTuple):
    """The text of a window. The other attributes are as in `Segment`."""

    token_ids: list[int]
    average_log_probability: float
    no_speech_probability: float
    compression_ratio: float
    temperature: float


class Transcription(Iterator[Segment]):
    """The segments of a sound file, computed while you iterate.

    Args:
        session: `onnxruntime.InferenceSession` of an artefact with a `SpeechSearch`.
        manifest: dict, its manifest.
        tokenizer: its tokenizer.
        path: str or path-like, the sound file.
        options: `SpeechOptions`.

    Attributes:
        duration: float, seconds of the file.
        position: float, seconds that are done.
        language: str, code of the language. `None` until the first window is decoded, if it is
            detected.
        language_probability: float, 1 for a given language.

    Raises:
        ArtefactError: the artefact has another search.
        FileNotFoundError, ImportError: there is no such file, or PyAV is missing.
        ValueError: the file is no sound, or the model does not know the language.
    """

    def __init__(
        self,
        session: Any,
        manifest: dict[str, Any],
        tokenizer: Any,
        path: StrPath,
        options: SpeechOptions,
    ):
        self._session, self._options = session, options
        self._tokens = SpeechTokens(manifest, tokenizer)
        languages, language = self._tokens.languages, options.language
        if language is not None and language not in (languages or ["en"]):
            known = ", ".join(sorted(languages)) or "en"
            raise ValueError(
                f"The model does not know the language {language!r}. It knows {known}."
            )
        if options.task == "translate" and not languages:
            raise ValueError("The model knows English only, so it cannot translate.")
        self._outputs = [value["name"] for value in manifest["outputs"]]
        self._length_penalty = manifest["search"]["config"]["length_penalty"]
        self._most_before = max(1, manifest["limits"]["target_length"] // 2 - 1)
        self._size = manifest["limits"]["source_length"]  # frames of a window
        (mels,) = [x["axes"][-1] for x in manifest["inputs"] if x["name"] == FEATURES]
        self.path = os.fspath(path)
        self._reader = FeatureReader(path, mels)
        self.duration: float = self._reader.duration
        self.position: float = 0.0
        self.language: str | None = language if languages else "en"
        self.language_probability: float | None = 1.0 if self.language else None
        self._segments = self._transcribed()

    def __iter__(self) -> "Transcription":
        return self

    def __next__(self) -> Segment:
        return next(self._segments)

    def _transcribed(self) -> Iterator[Segment]:
        start, total, options = 0, self._reader.frames, self._options
        before = self._tokens.encode(f" {text}") if (text := options.initial_prompt.strip()) else []
        while start < total:
            size = min(self._size, total - start)
            features = self._reader.window(start, self._size)
            before = before[-self._most_before :]
            decoded = self._decode(features, before, start)
            advance = size
            if not self._is_silent(decoded):
                parts, advance = split(decoded.token_ids, size, self._tokens)
                for first, last, tokens in parts:
                    text = self._tokens.text(tokens)
                    if first == last or not text.strip():
                        continue
                    before += tokens
                    times = (start / FRAMES_PER_SECOND + time for time in (first, last))
                    yield Segment(*times, text, tuple(tokens), *decoded[1:])
                reset = decoded.temperature > options.prompt_reset_on_temperature
                if reset or not options.condition_on_previous_text:
                    before = []
            start += advance
            self.position = min(start, total) / FRAMES_PER_SECOND
        self.position = self.duration

    def _decode(self, features: Array, before: Sequence[int], start: int) -> Decoded:
        """The text of a window: the first one that passes the thresholds."""
        found: list[Decoded] = []
        for number, temperature in enumerate(self._options.temperatures):
            decoded = self._search(features, before, temperature, start + number)
            found.append(decoded)
            if not self._fails(decoded):
                return decoded
        unrepetitive = [each for each in found if not self._repeats(each)]
        best = max(unrepetitive or found, key=lambda each: each.average_log_probability)
        return best._replace(temperature=found[-1].temperature)

    def _search(
        self, features: Array, before: Sequence[int], temperature: float, draw: int
    ) -> Decoded:
        """The text of one search."""
        start_ids = self._tokens.start(self.language, self._options.task, before)
        inputs = {FEATURES: features[None], signature.START_IDS: np.array([start_ids], np.int32)}
        if temperature > 0:
            seed = (self._options.seed * 1_000_003 + draw) % signature.MOST_SEED
            inputs["temperature"] = np.array(temperature, np.float32)
            inputs[signature.SEED] = np.array(seed, np.int32)
        outputs = dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))
        no_speech, *languages = outputs[signature.START_SCORES][0]
        if self.language is None:
            probabilities = np.exp(np.array(languages) - max(languages))
            best = int(probabilities.argmax())
            self.language = list(self._tokens.languages)[best]
            self.language_probability = float(probabilities[best] / probabilities.sum())
        ids = outputs[signature.TOKEN_IDS][0, 0]
        ids = ids[ids != PAD_ID].tolist()
        score = float(outputs[signature.SCORES][0, 0])
        log_probability = score * max(len(ids) - 1, 1) ** self._length_penalty
        tokens = [id for id in ids if id != END_ID]
        average = log_probability / (len(tokens) + 1)
        ratio = compression_ratio(self._tokens.text(tokens).strip())
        return Decoded(tokens, average, float(np.exp(no_speech)), ratio, temperature)

    def _repeats(self, decoded: Decoded) -> bool:
        limit = self._options.compression_ratio_threshold
        return limit is not None and decoded.compression_ratio > limit

    def _is_unlikely(self, decoded: Decoded) -> bool:
        limit = self._options.log_probability_threshold
        return limit is not None and decoded.average_log_probability < limit

    def _is_quiet(self, decoded: Decoded) -> bool:
        limit = self._options.no_speech_threshold
        return limit is not None and decoded.no_speech_probability > limit

    def _fails(self, decoded: Decoded) -> bool:
        """Whether another temperature is tried."""
        if self._is_quiet(decoded) and self._is_unlikely(decoded):
            return False  # no speech
        return self._repeats(decoded) or self._is_unlikely(decoded)

    def _is_silent(self, decoded: Decoded) -> bool:
        """Whether the window is skipped."""
        has_limit = self._options.log_probability_threshold is not None
        return self._is_quiet(decoded) and (self._is_unlikely(decoded) or not has_limit)


def split(
    token_ids: Sequence[int], size: int, tokens: SpeechTokens
) -> tuple[list[tuple[float, float, list[int]]], int]:
    """Divides the tokens of a window into segments, at pairs of times.

    Args:
        token_ids: the generated tokens, without end token.
        size: number of frames of the window.
        tokens: `SpeechTokens`.

    Returns:
        A pair: for each segment its start and end in seconds from the start of the window, and its
        tokens; and the number of frames to the next window.
    """
    ids, is_time = list(token_ids), [tokens.is_time(token) for token in token_ids]
    ends = [i for i in range(1, len(ids)) if is_time[i - 1] and is_time[i]]
    if not ends:
        times = [tokens.seconds(id) for id in ids if tokens.is_time(id)]
        last = times[-1] if times and times[-1] > 0 else size / FRAMES_PER_SECOND
        return [(0.0, last, ids)], size
    closed = is_time[-2:] == [False, True]  # no speech after the last time
    if closed:
        ends.append(len(ids))
    parts = [ids[first:last] for first, last in zip([0, *ends], ends, strict=False)]
    segments = [(tokens.seconds(part[0]), tokens.seconds(part[-1]), part) for part in parts]
    last = parts[-1][-1] - tokens.first_time
    # A window that ends at 0 would be decoded again and again.
    return segments, size if closed or last <= 0 else min(last * FRAMES_PER_TIME, size)


def compression_ratio(text: str) -> float:
    """Bytes of a text over its bytes after zlib."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))
