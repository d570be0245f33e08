"""Batches of recordings and their texts, to fine-tune a Whisper model.

Shapes: B batch, S frames of a window, M mel bands, T target length, P start tokens.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, make_dataset
from keras_transformer.data.examples import (
    Examples,
    Padded,
    Rows,
    are_blank,
    begun,
    check_counts_agree,
)
from keras_transformer.data.plan import BatchOptions, check_count
from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.mel import HOP, SAMPLE_RATE
from keras_transformer.special_ids import END_ID, PAD_ID
from keras_transformer.text.corpora import checked_strings
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.types import Array, Ids, Sound

FRAMES_PER_SECOND = SAMPLE_RATE // HOP
FRAMES_PER_TIME = 2  # the tokens of times count steps of 0.02 s


def speech_batches(
    sounds: Sequence[Sound],
    texts: Sequence[str],
    tokenizer: JsonTokenizer,
    batch_size: int = 8,
    *,
    language: str | None = "en",
    task: str = "transcribe",
    times: bool = True,
    seconds: float = 30.0,
    mels: int = 80,
    max_length: int = 448,
    **options: Any,
) -> Dataset:
    """Makes batches of recordings and texts for `model.fit` of a Whisper model.

    Each batch is `({"features": (B, S, M), "target_ids": (B, T)}, labels (B, T))`. The features are
    the same as in `Transcriber`. A target consists of the start tokens, such as
    `<|startoftranscript|><|en|><|transcribe|>`, and the text between the times of its start and its
    end. The labels of the start tokens are padding (0), so losses and metrics of this package leave
    them out.

    Whisper reads windows of 30 seconds. A shorter window trains faster on short recordings: the
    work of the encoder grows with the window. Export the model with the same window:
    `export_onnx(..., max_source_length=round(100 * seconds))`.

    Args:
        sounds: sequence of N sounds, as in `Transcriber.transcribe`: paths, bytes, open files or
            arrays of samples at 16 kHz. Files have any sample rate and number of channels, and need
            the extra `service`. All sounds need the extra `serve`.
        texts: sequence of N strings. Special tokens in them, such as `<|0.00|>`, are left out.
        tokenizer: `JsonTokenizer` of the model's folder.
        batch_size: int, B, rounded up to a multiple of `batch_multiple`. Missing rows of the last
            batch consist of padding. Defaults to 8.
        language: str, code of the spoken language; `None` for models of English only. Defaults to
            "en".
        task: "transcribe", or "translate" to English. Defaults to "transcribe".
        times: whether the targets have times: 0 and the end of the recording. `Transcriber` asks
            the model for times. Defaults to `True`.
        seconds: float, length of a window; S is 100 times this. Longer recordings are left out.
            Defaults to 30.
        mels: int, M, the mel bands that the model reads. Defaults to 80; Whisper large-v3 has 128.
        max_length: int, greatest T, the positions of the decoder. Recordings with longer targets
            are left out. Defaults to 448, as in Whisper.
        **options: `shuffle`, `seed` and `batch_multiple` of `BatchOptions`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        FileNotFoundError, ImportError: there is no such file, or PyAV is missing.
        TypeError: a text is not a string, a sound has another type, or another option is passed.
        ValueError: numbers of sounds and texts differ, a sound cannot be read, the tokenizer lacks
            a token of Whisper, nothing is left, or an argument is out of its range.

    Example:

    >>> train = speech_batches(["a.wav"], ["Ever tried."], tokenizer)  # doctest: +SKIP
    >>> model.fit(train, epochs=2)  # doctest: +SKIP
    """
    check_count("batch_size", batch_size)
    check_count("max_length", max_length)
    if fixed := {"bucket_boundaries", "static_shapes"} & options.keys():
        raise TypeError(
            f"speech_batches does not take {', '.join(sorted(fixed))}: it pads all recordings to "
            "`seconds`. Leave it out."
        )
    frames = round(seconds * FRAMES_PER_SECOND)
    check_count("100 * seconds", frames)
    check_counts_agree(sounds=sounds, texts=texts)
    texts = checked_strings(texts, "texts")
    multiple = options.get("batch_multiple", 1)
    check_count("batch_multiple", multiple)
    batch_size = -(-batch_size // multiple) * multiple
    start = _start_tokens(tokenizer, language, task, times)
    features = [_features(sound, mels) for sound in sounds]
    first_time = tokenizer.added_ids["<|0.00|>"] if times else None
    special = set(tokenizer.added_ids.values())  # may be written in a text
    rows = tokenizer.encode([f" {text.strip()}" for text in texts])
    targets = [
        _target(start, [id for id in row if id not in special], first_time, len(array))
        for row, array in zip(rows, features, strict=True)
    ]
    sources, labels = Rows.of(features), Padded("target", may_be_shorter=True)
    examples = Examples(
        "recording",
        {"source": sources, "target": Rows.of(targets)},
        are_blank(texts) | (sources.lengths == 0),
        {"features": Padded("source"), "target_ids": replace(labels, part=begun)},
        replace(labels, part=functools.partial(_unlabelled, len(start))),
        limits={"target": max_length},
    )
    batch_options = BatchOptions(
        batch_size * frames, frames, bucket_boundaries=[frames], static_shapes=True, **options
    )
    return make_dataset(examples, batch_options, {"target": tokenizer})


def _start_tokens(
    tokenizer: JsonTokenizer, language: str | None, task: str, times: bool
) -> list[int]:
    """Returns the tokens between the begin token and the text, without times."""
    names = [] if language is None else [f"<|{language}|>", f"<|{task}|>"]
    names += [] if times else ["<|notimestamps|>"]
    ids = tokenizer.added_ids if isinstance(tokenizer, JsonTokenizer) else {}
    missing = [name for name in [*names, "<|0.00|>"] if name not in ids]
    if missing:
        raise ValueError(
            f"The tokenizer has no token {' and no token '.join(missing)}. Pass Whisper's "
            'tokenizer, and a language and a task that it knows, such as "en" and "transcribe".'
        )
    return [ids[name] for name in names]


def _features(sound: Sound, mels: int) -> Array:
    """Returns the log-mel features of a sound, (S', M)."""
    reader = FeatureReader(sound, mels)
    return reader.window(0, reader.frames)


def _target(start: list[int], text: list[int], first_time: int | None, frames: int) -> Ids:
    """Returns the tokens after the begin token."""
    if first_time is not None:
        text = [first_time, *text, first_time + round(frames / FRAMES_PER_TIME)]
    return np.array([*start, *text, END_ID], np.int32)


def _unlabelled(start: int, row: Ids) -> Ids:
    """Returns the labels of a target, with padding in place of the first `start` tokens."""
    return np.concatenate([np.full(start, PAD_ID), row[start:]])
