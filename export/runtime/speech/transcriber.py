"""`Transcriber`: sound to text, pictures to text."""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from keras_transformer.export.artefact.reader import Artefact
from keras_transformer.export.artefact.results import ResultMaker, Translation
from keras_transformer.export.runtime.input_readers import ArrayReader, InputReader
from keras_transformer.export.runtime.runner import ALL, Work
from keras_transformer.export.runtime.searches import TranslationMaker
from keras_transformer.export.runtime.speech.tokens import SpeechOptions
from keras_transformer.export.runtime.speech.transcription import Transcription
from keras_transformer.export.runtime.speech.transcripts import Segment, Transcript
from keras_transformer.export.runtime.streaming import SearchRunner
from keras_transformer.sound.features import FRAMES_PER_SECOND
from keras_transformer.types import Array, Sound, SoundFile

# Types of a path, and of the content of a file.
CONTENTS = (str, os.PathLike, bytes, bytearray, memoryview)


class Transcriber(SearchRunner):
    """Serves a search over an encoder that reads no ids: sound to text, pictures to text.

    With a Whisper model, `transcribe` also takes a sound of any length: a path, bytes, an open
    file or an array of samples. Otherwise an input is an array without batch axis, a dict of arrays
    by input name, or their JSON.
    Only arrays of equal shapes share a batch, so results do not depend on the other inputs of a
    call. Arrays that the model does not take have an `error`; so have arrays with an axis of free
    size that is longer than the artefact's `limits["source_length"]`. Seeds are as in `Generator`;
    threads, providers, streams and errors as in `Translator`.

    Arguments are the same as in `Translator`.

    Attributes:
        provider, manifest, tokenizer, session: as in `Translator`.

    Example:

    >>> transcriber = Transcriber("out/listener")  # doctest: +SKIP
    >>> transcriber.transcribe([frames])  # doctest: +SKIP
    ['one two three']
    >>> for segment in Transcriber("out/whisper").transcribe("a.wav"):  # doctest: +SKIP
    ...     print(segment.start, segment.end, segment.text)
    """

    task = "transcribe"
    serves = "'transcribe': a search over an encoder that reads arrays"
    done = "transcribed"

    def _reader_and_result_maker(self, artefact: Artefact) -> tuple[InputReader, ResultMaker]:
        self._check(artefact)
        reader = ArrayReader(self._inputs, artefact.manifest["limits"]["source_length"])
        return reader, TranslationMaker(artefact)

    @property
    def hears(self) -> bool:
        """Whether the artefact is a Whisper model, which takes sounds."""
        return self.manifest["search"]["class_name"] == "SpeechSearch"

    @overload
    def transcribe(self, inputs: SoundFile, **options: Any) -> Transcription: ...

    @overload
    def transcribe(self, inputs: Array, **options: Any) -> Transcription | list[str]: ...

    @overload
    def transcribe(
        self,
        inputs: Iterable[Any],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        **options: Any,
    ) -> list[str]: ...

    def transcribe(
        self,
        inputs: Sound | Iterable[Any],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        **options: Any,
    ) -> Transcription | list[str]:
        """Returns the segments of a sound, or the best text of each input.

        For a sound, the artefact must be a Whisper model with a `SpeechSearch`. The result is a
        `Transcription`, an iterator of `Segment`, and `options` are the arguments of
        `SpeechOptions`, such as `language="de"` or `task="translate"`.

        Args:
            inputs: str or path-like, a sound file; or bytes or a file that is open in binary mode,
                its content; or an array (N,), samples of one channel at 16 kHz, int16 or
                floating-point numbers from -1 to 1. An open file is read into memory, from its
                position. An array must not change before the last segment. Or an iterable of arrays
                or of dicts of arrays; or one array with batch axis.
            seed: as in `Generator`.
            tokens_per_batch: int, maximum size of a batch; the first axis of an input counts.
            **options: as in `Translator.translate`.

        Returns:
            A `Transcription`, or a list of str in the order of `inputs`. An input that is refused
            or fails gives an empty str and a warning.

        Raises:
            ArtefactError: a sound is passed, but the artefact has another search.
            FileNotFoundError, ImportError: there is no such file, or PyAV is missing.
            TypeError: a list of sounds is passed, a file is open as text, or samples have another
                dtype.
            ValueError: the sound is empty, too long, or cannot be read; or samples do not have one
                axis, are not finite or are far above 1; or the model does not know the language.
        """
        if isinstance(inputs, CONTENTS) or (self.hears and _is_in_memory(inputs)):
            if seed is not None:
                options["seed"] = seed
            tokenizer, chosen = self.target_tokenizer, SpeechOptions(**options)
            return Transcription(self.session, self.manifest, tokenizer, inputs, chosen)
        if self.hears:
            inputs = list(inputs)
            if not all(map(_is_row, inputs)):
                raise TypeError(
                    "`inputs` is a list of sound files, but a call transcribes one. Call "
                    "`transcribe(sound)` for each, with a path, bytes, or a NumPy array of samples."
                )
        return list(self.texts(inputs, seed, tokens_per_batch, ALL, **options))

    def n_best(
        self,
        inputs: Iterable[Any],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        **options: Any,
    ) -> list[Translation]:
        """Returns all texts of each input with scores. Otherwise as `transcribe`."""
        return list(self.results(inputs, seed, tokens_per_batch, ALL, **options))

    def n_best_stream(
        self,
        inputs: Iterable[Any],
        seed: int | None = None,
        tokens_per_batch: int = 2048,
        read_ahead: int = 1024,
        **options: Any,
    ) -> Iterator[Translation]:
        """Yields the results of `n_best`, reading at most `read_ahead` inputs ahead."""
        return self.results(inputs, seed, tokens_per_batch, read_ahead, **options)

    def work(self, item: bytes, **options: Any) -> Work:
        """Transcribes a sound and yields lists of segments, one for each window.

        Args:
            item: bytes, the content of a sound file.
            **options: arguments of `SpeechOptions`.

        Returns:
            A Python generator, which returns the `Transcript` and the number of frames.
        """
        transcription = self.transcribe(item, **options)
        segments: list[Segment] = []
        for window in transcription.windows():
            segments += window
            yield window
        duration = transcription.duration
        transcript = Transcript(transcription.language, duration, segments)
        return transcript, round(duration * FRAMES_PER_SECOND)


def _is_in_memory(sound: Any) -> bool:
    """Returns whether an input is an array or a file object."""
    return hasattr(sound, "__array__") or hasattr(sound, "read")


def _is_row(item: Any) -> bool:
    """Returns whether an input is a dict of arrays or its JSON, and not a sound."""
    if isinstance(item, (str, bytes)):
        return item.lstrip()[:1] in ("{", b"{")
    return isinstance(item, Mapping)
