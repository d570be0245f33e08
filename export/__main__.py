"""Exports from the shell: `python -m keras_transformer.export MODEL.keras OUT --precision int8`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.export.artefact.messages import in_shell
from keras_transformer.export.command import (
    BEAM,
    FORMATS,
    ONNX,
    OPTIONS,
    RECORDS,
    SAMPLING,
    SEARCH_OPTIONS,
    SEARCHES,
    TRITON,
    WITH_SEARCH,
    add_options,
    chosen,
    flag,
    flags,
    load_head,
    warnings_in_shell,
)
from keras_transformer.export.staging import ExportError, Progress


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line.

    Parsed arguments hold only the given options, because the exporters set the defaults.
    """
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export",
        description="Export a saved model to ONNX, LiteRT, a SavedModel or another engine, or "
        "write an artefact into a Triton model repository.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("model", help="MODEL.keras; for triton the folder of an artefact")
    parser.add_argument("out", help="folder to write; for triton a model repository")
    parser.add_argument("--format", choices=FORMATS, default=ONNX)
    parser.add_argument("--quiet", action="store_true", default=False, help="no progress on stderr")
    search = parser.add_argument_group(
        "search", "One of these. The default is a beam of 4 if the model can generate."
    )
    exclusive = search.add_mutually_exclusive_group()
    groups = ((exclusive, SEARCHES), (search, SEARCH_OPTIONS), (parser, OPTIONS))
    for group, options in groups:
        add_options(group, options)
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments; exits with an error if an option does not apply."""
    made = parser()
    arguments = made.parse_args(argv)
    rules = [
        ([name], arguments.format in formats, f"--format {' or '.join(formats)}")
        for name, (formats, *_) in (SEARCHES | SEARCH_OPTIONS | OPTIONS).items()
    ]
    rules += [
        (BEAM, not chosen(arguments, ("greedy", "sampling", "forward")), "a beam search"),
        (SAMPLING, "sampling" in arguments, "--sampling"),
        (["max_length", "options", *RECORDS], "forward" not in arguments, "a search"),
    ]
    for names, applies, where in rules:
        given = chosen(arguments, names)
        if given and not applies:
            made.error(f"{', '.join(map(flag, given))}: only with {where}")
    return arguments


def chosen_search(arguments: argparse.Namespace, model: Any) -> Any:
    """Returns the search that the arguments describe, or `None` for a forward pass."""
    from keras_transformer.search import BeamSearch, GreedySearch, Sampling

    records = chosen(arguments, RECORDS)
    if "greedy" in arguments:
        return GreedySearch(**records)
    if "sampling" in arguments:
        return Sampling(**chosen(arguments, SAMPLING), **records)
    beam = {**chosen(arguments, BEAM), **records}
    if "forward" in arguments or not (beam or hasattr(model, "decode_step")):
        return None
    return BeamSearch(**beam)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status.

    Returns:
        0 on success, 1 after an error, 128 + N after signal N.
    """
    arguments = parse(argv)
    try:
        with warnings_in_shell(parser()):
            run(arguments)
    except KeyboardInterrupt:
        return _report_stop(Stopped(signal.SIGINT), arguments.out)
    except Stopped as error:
        return _report_stop(error, arguments.out)
    except Exception as error:  # compiled code may replace a signal's exception
        if Progress.pending is not None:
            return _report_stop(Progress.pending, arguments.out)
        if not isinstance(error, (ExportError, ImportError, OSError, TypeError, ValueError)):
            raise
        print(f"{parser().prog}: {in_shell(str(error), flags(parser()))}", file=sys.stderr)
        return 1
    return 0


def _report_stop(stopped: BaseException, out: str) -> int:
    """Prints which signal ended the export; returns the exit status."""
    (number,) = stopped.args
    name = signal.Signals(number).name
    print(f"stopped by {name}; {out} is unchanged", file=sys.stderr)
    return 128 + number


def run(arguments: argparse.Namespace) -> None:
    """Loads the model and exports it.

    Keras is imported here so that --help and argument errors need no framework.
    """
    from keras_transformer import export

    write = getattr(export, f"export_{arguments.format}")
    options = chosen(arguments, OPTIONS)
    if arguments.format == TRITON:
        print(write(arguments.model, arguments.out, **options))
        return

    import keras

    from keras_transformer.text.json_tokenizer import load_tokenizer

    model = keras.saving.load_model(arguments.model, compile=False)
    for name in chosen(arguments, ("tokenizer", "target_tokenizer")):
        options[name] = load_tokenizer(options[name])
    if "head" in options:
        options["head"] = load_head(options["head"])
    if arguments.format in WITH_SEARCH:
        options["search"] = chosen_search(arguments, model)
    options.setdefault("tokenizer", None)
    write(model, arguments.out, verbose=not arguments.quiet, **options)


class Stopped(BaseException):
    """Raised by a signal that asks the process to end; holds its number."""


def stop(number: int, frame: FrameType | None) -> None:
    """Handles a signal by raising `Stopped`. The export then removes the files that it wrote."""
    Progress.pending = Stopped(number)
    raise Progress.pending


def handle_signals() -> None:
    """Installs `stop` as signal handler. Windows has no SIGHUP, and nohup ignores it."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


if __name__ == "__main__":
    handle_signals()
    sys.exit(main())
