"""The part of the command line that transcribes a sound file."""

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from keras_transformer.export.runtime.console import tell
from keras_transformer.export.runtime.speech.tokens import TASKS
from keras_transformer.export.runtime.speech.transcriber import Transcriber
from keras_transformer.export.runtime.speech.transcription import Transcription
from keras_transformer.export.runtime.speech.transcripts import FORMATS

# Options of a transcription, by their names in `SpeechOptions`, with the settings of argparse.
_OPTIONS: dict[str, dict[str, Any]] = {
    "language": {
        "metavar": "CODE",
        "help": "spoken language, such as de (default: detected)",
    },
    "task": {"choices": TASKS, "help": "translate writes English (default transcribe)"},
    "initial_prompt": {
        "metavar": "TEXT",
        "help": "text before the sound, such as names to expect",
    },
    "word_timestamps": {
        "action": "store_const",
        "const": True,
        "help": "times of words, in the format json",
    },
    "vad_filter": {
        "action": "store_const",
        "const": True,
        "help": "leave out pauses of more than two seconds (voice activity detection)",
    },
    "condition_on_previous_text": {
        "action": "store_const",
        "const": False,
        "help": "decode each window of 30 s alone, not as the continuation of the text before",
    },
}


def _flag(name: str) -> str:
    if name == "condition_on_previous_text":
        return "--no-previous-text"
    return f"--{name.replace('_', '-')}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the sound file and the options of its transcription, `None` if they are not given."""
    parser.add_argument(
        "sound", nargs="?", help="a sound file, for Whisper models; instead of standard input"
    )
    group = parser.add_argument_group("sound", "Options for a sound file.")
    formats = "transcript format (default txt); json has all values"
    group.add_argument("--format", choices=FORMATS, help=formats)
    for name, settings in _OPTIONS.items():
        group.add_argument(_flag(name), dest=name, **settings)


def check_options(
    parser: argparse.ArgumentParser, options: argparse.Namespace, others: Sequence[str]
) -> bool:
    """Returns whether there is a sound file to transcribe. Ends the process at wrong options.

    Args:
        parser: of the command line.
        options: the parsed command line.
        others: the options for lines that were passed.
    """
    given = [name for name in ("format", *_OPTIONS) if getattr(options, name) is not None]
    flags = list(map(_flag, given))
    if options.sound is not None and others:
        parser.error(f"{', '.join(others)}: not with a sound file")
    if options.sound is None and flags:
        parser.error(f"{', '.join(flags)}: only with a sound file")
    return options.sound is not None


def transcribe(options: argparse.Namespace, target: BinaryIO, shown: bool) -> int:
    """Writes the transcript of `options.sound`; returns the exit status.

    Args:
        options: the parsed command line.
        target: binary file.
        shown: whether the progress is drawn on standard error.
    """
    with contextlib.redirect_stdout(sys.stderr):  # onnxruntime prints missing libraries
        transcriber = Transcriber(options.folder, options.provider, threads=options.threads)
    if not options.quiet:
        tell(f"running on {transcriber.provider}\n")
    values: dict[str, Any] = {name: getattr(options, name) for name in _OPTIONS}
    given = {name: value for name, value in values.items() if value is not None}
    try:
        segments, start = transcriber.transcribe(options.sound, **given), time.monotonic()
    except (FileNotFoundError, ImportError) as error:
        raise ValueError(str(error)) from error
    for part in FORMATS[options.format or "txt"](segments):
        target.write(part.encode("utf-8", "replace"))
        target.flush()
        if shown:
            tell(f"\r\033[K{_progress(segments, time.monotonic() - start)}")
    if shown:
        tell("\n")
    if not options.quiet and segments.language_probability is not None:
        tell(f"language {segments.language}, probability {segments.language_probability:.2f}\n")
    return 0


def _progress(segments: Transcription, seconds: float) -> str:
    """Returns the share of the file that is done, and the speed."""
    share = segments.position / max(segments.duration, 1e-9)
    speed = segments.position / max(seconds, 1e-9)  # a coarse clock may not have advanced
    return f"{share:4.0%} of {segments.duration:.0f} s, {speed:.1f} x real time"
