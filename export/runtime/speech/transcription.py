"""Transcribes sound files of any length with a Whisper model, window by window.

It follows OpenAI's `transcribe` (arXiv 2212.04356, section 4.5). A window of 30 seconds is decoded.
The times that the model writes divide it into segments, and the next window starts where the last
complete segment ends.

The last window is shorter than the others. Like OpenAI's `transcribe` and faster-whisper, this
module fills it with features of 0, not with the features of silence, so the tokens are equal. A
model that reads `samples` computes and fills the features itself.

Shapes: P start tokens, T generated tokens.
"""

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.export.runtime.speech.tokens import SECONDS, SpeechOptions, SpeechTokens
from keras_transformer.export.runtime.speech.transcripts import Segment
from keras_transformer.export.runtime.speech.word_times import TimedPart, place_words, time_words
from keras_transformer.sound.features import FRAMES_PER_SECOND, FeatureReader, SampleReader
from keras_transformer.sound.mel import HOP
from keras_transformer.sound.samples import hold
from keras_transformer.sound.voice_activity import VoicedSound
from keras_transformer.special_ids import END_ID, PAD_ID
from keras_transformer.types import Array, Sound

FEATURES, SAMPLES = "features", "samples"
FRAMES_PER_TIME = round(SECONDS * FRAMES_PER_SECOND)  # features between two time tokens


class Decoded(NamedTuple):
    """The text of a window, as in `Segment`, and the outputs of the search."""

    token_ids: list[int]
    average_log_probability: float
    no_speech_probability: float
    compression_ratio: float
    temperature: float
    outputs: Mapping[str, Array]


class Transcription(Iterator[Segment]):
    """The segments of a sound file, computed while you iterate.

    Args:
        session: `onnxruntime.InferenceSession` of an artefact with a `SpeechSearch`.
        manifest: dict, its manifest.
        tokenizer: its tokenizer.
        sound: as in `Transcriber.transcribe`.
        options: `SpeechOptions`.

    Attributes:
        duration: float, seconds of the file.
        position: float, seconds done so far.
        language: str, code of the language. `None` until the first window is decoded, if it is
            detected.
        language_probability: float, 1 for a given language.

    Raises:
        ArtefactError: the artefact has another search.
        FileNotFoundError, ImportError: there is no such file, or a package of the extra
            `service` is missing.
        TypeError, ValueError: the sound cannot be read; see `Transcriber.transcribe`.
        ValueError: the sound is too long, or the model does not know the language.
    """

    def __init__(
        self,
        session: Any,
        manifest: dict[str, Any],
        tokenizer: Any,
        sound: Sound,
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
        if options.word_timestamps and signature.WORD_ATTENTION not in self._outputs:
            raise ArtefactError(
                "This artefact has no heads for the times of words. Export it with a SpeechSearch "
                "that has word_heads."
            )
        most, least = options.compression_ratio_threshold, options.log_probability_threshold
        self._most_ratio = math.inf if most is None else most
        self._least_likely = -math.inf if least is None else least
        self._length_penalty = manifest["search"]["config"]["length_penalty"]
        self._most_before = max(1, manifest["limits"]["target_length"] // 2 - 1)
        axes = {value["name"]: value["axes"] for value in manifest["inputs"]}
        self._input = SAMPLES if SAMPLES in axes else FEATURES
        self._size = manifest["limits"]["source_length"]  # frames of a window
        sound = hold(sound)
        self._voiced = VoicedSound(sound, options.most_seconds) if options.vad_filter else None
        heard = self._voiced or sound
        if self._input == SAMPLES:
            self._size //= HOP
            self._reader = SampleReader(heard, options.most_seconds)
        else:
            self._reader = FeatureReader(heard, axes[FEATURES][-1], options.most_seconds)
        self.duration: float = (self._voiced or self._reader).duration
        self.position: float = 0.0
        self.language: str | None = language if languages else "en"
        self.language_probability: float | None = 1.0 if self.language else None
        self._windows = self._transcribed()
        self._segments = itertools.chain.from_iterable(self._windows)

    def __next__(self) -> Segment:
        return next(self._segments)

    def windows(self) -> Iterator[list[Segment]]:
        """Returns the segments of each remaining window; an empty list for one without text."""
        return self._windows

    def _transcribed(self) -> Iterator[list[Segment]]:
        start, total, options, last_word = 0, self._reader.frames, self._options, 0.0
        text = (options.initial_prompt or "").strip()
        prompt = self._tokens.encode(f" {text}") if text else []
        before = [id for id in prompt if self._tokens.is_text(id)]
        while start < total:
            size = min(self._size, total - start)
            window = self._reader.window(start, self._size)
            before = before[-self._most_before :]
            decoded = self._decode(window, before, start)
            advance, segments = size, []
            if not self._is_silent(decoded):
                parts, advance, closed = split(decoded.token_ids, start, size, self._tokens)
                if options.word_timestamps:
                    parts = self._with_words(parts, decoded, start, size, last_word)
                    ends = [part.words[-1].end for part in parts if part.words]
                    last_word = ends[-1] if ends else last_word
                    if ends and not closed and ends[-1] > start / FRAMES_PER_SECOND:
                        advance = round(ends[-1] * FRAMES_PER_SECOND) - start
                for part in parts:
                    text = self._tokens.text(part.token_ids)
                    if part.start == part.end or not text.strip():
                        continue
                    before += part.token_ids
                    times, ids = (part.start, part.end), tuple(part.token_ids)
                    segments.append(Segment(*times, text, ids, *decoded[1:-1], part.words, start))
                reset = decoded.temperature > options.prompt_reset_on_temperature
                if reset or not options.condition_on_previous_text:
                    before = []
            start += advance
            self.position = self._time(min(start, total) / FRAMES_PER_SECOND)
            yield [self._placed(segment) for segment in segments]
        self.position = self.duration

    def _time(self, seconds: float, within: float | None = None) -> float:
        """Converts a time in the model's input to a time in the file; see `VoicedSound.time`."""
        if self._voiced is None:
            return min(seconds, self.duration)
        return self._voiced.time(seconds, seconds if within is None else within)

    def _placed(self, segment: Segment) -> Segment:
        """Returns the segment with its times in the file."""
        words = []
        for word in segment.words:
            middle = (word.start + word.end) / 2
            times = {name: self._time(getattr(word, name), middle) for name in ("start", "end")}
            words.append(word._replace(**times))
        start, before_end = self._time(segment.start), segment.end - 0.5 / FRAMES_PER_SECOND
        end = self._time(segment.end, max(segment.start, before_end))
        seek = round(self._time(segment.seek / FRAMES_PER_SECOND) * FRAMES_PER_SECOND)
        return segment._replace(start=start, end=end, words=tuple(words), seek=seek)

    def _with_words(
        self,
        parts: list[TimedPart],
        decoded: Decoded,
        start: int,
        size: int,
        last_word: float,
    ) -> list[TimedPart]:
        """Returns the segments of a window with their words."""
        ids = [id for part in parts for id in part.token_ids if self._tokens.is_text(id)]
        words, median = time_words(
            ids,
            decoded.outputs[signature.WORD_ATTENTION][0],
            decoded.outputs[signature.WORD_SCORES][0],
            len(self._tokens.start(self.language, self._options.task, ())),
            size // FRAMES_PER_TIME,
            self._tokens,
            self.language,
        )
        offset = start / FRAMES_PER_SECOND
        return place_words(parts, words, median, offset, last_word, self._tokens)

    def _decode(self, window: Array, before: Sequence[int], start: int) -> Decoded:
        """Decodes a window at each temperature, until a text passes the thresholds."""
        found: list[Decoded] = []
        for number, temperature in enumerate(self._options.temperatures):
            decoded = self._search(window, before, temperature, start + number)
            found.append(decoded)
            if not self._fails(decoded):
                return decoded
        unrepetitive = [each for each in found if each.compression_ratio <= self._most_ratio]
        best = max(unrepetitive or found, key=lambda each: each.average_log_probability)
        return best._replace(temperature=found[-1].temperature)

    def _search(
        self, window: Array, before: Sequence[int], temperature: float, draw: int
    ) -> Decoded:
        """Decodes a window by one search."""
        start_ids = self._tokens.start(self.language, self._options.task, before)
        inputs = {self._input: window[None], signature.START_IDS: np.array([start_ids], np.int32)}
        if self._options.word_timestamps:
            inputs[signature.WORD_TIMES] = np.array(1, np.int32)
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
        no_speech = float(np.exp(no_speech))
        return Decoded(tokens, average, no_speech, ratio, temperature, outputs)

    def _fails(self, decoded: Decoded) -> bool:
        """Returns whether another temperature is tried."""
        is_unlikely = decoded.average_log_probability < self._least_likely
        if is_unlikely and self._is_quiet(decoded):
            return False  # no speech
        return is_unlikely or decoded.compression_ratio > self._most_ratio

    def _is_silent(self, decoded: Decoded) -> bool:
        """Returns whether the window is skipped."""
        has_limit = self._options.log_probability_threshold is not None
        is_unlikely = decoded.average_log_probability < self._least_likely
        return self._is_quiet(decoded) and (is_unlikely or not has_limit)

    def _is_quiet(self, decoded: Decoded) -> bool:
        limit = self._options.no_speech_threshold
        return limit is not None and decoded.no_speech_probability > limit


def split(
    token_ids: Sequence[int], start: int, size: int, tokens: SpeechTokens
) -> tuple[list[TimedPart], int, bool]:
    """Divides the tokens of a window into segments, at pairs of time tokens.

    Args:
        token_ids: the generated tokens, without end token.
        start: first frame of the window.
        size: number of its frames.
        tokens: `SpeechTokens`.

    Returns:
        The segments, in seconds from the start of the file, all within the window; the number of
        frames to the next window; and whether the text ends with a single time token, so that no
        speech follows.
    """
    offset = start / FRAMES_PER_SECOND
    ids, is_time = list(token_ids), [tokens.is_time(token) for token in token_ids]
    ends = [i for i in range(1, len(ids)) if is_time[i - 1] and is_time[i]]
    closed = is_time[-2:] == [False, True]
    if not ends:
        times = [tokens.seconds(id) for id in ids if tokens.is_time(id)]
        last = times[-1] if times and times[-1] > 0 else size / FRAMES_PER_SECOND
        return [_within(TimedPart(offset, offset + last, ids), offset, size)], size, closed
    if closed:
        ends.append(len(ids))
    parts = [ids[first:last] for first, last in zip([0, *ends], ends, strict=False)]
    segments = []
    for part in parts:
        first, last = (offset + tokens.seconds(part[i]) for i in (0, -1))
        segments.append(_within(TimedPart(first, last, part), offset, size))
    last = parts[-1][-1] - tokens.first_time
    # A window that ends at 0 would be decoded again and again.
    advance = size if closed or last <= 0 else min(last * FRAMES_PER_TIME, size)
    return segments, advance, closed


def _within(part: TimedPart, offset: float, size: int) -> TimedPart:
    """Moves a segment that ends after its window, such as after the end of the sound."""
    end = offset + size / FRAMES_PER_SECOND
    if part.end <= end:
        return part
    latest = end if part.start == part.end else max(offset, end - SECONDS)
    return part._replace(start=part.start if part.start < end else latest, end=end)


def compression_ratio(text: str) -> float:
    """Computes the bytes of a text over its bytes after zlib."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))
