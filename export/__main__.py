"""Exports from the shell: `python -m keras_transformer.export MODEL.keras OUT --precision int8`."""

import argparse
import os
import signal
import sys
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Any, TypeAlias

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.export.artefact import signature
from keras_transformer.export.staging import ExportError, Progress

FORMATS = ("onnx", "saved_model", "ctranslate2", "marian", "triton")
ONNX, SAVED_MODEL, CTRANSLATE2, MARIAN, TRITON = FORMATS
WITH_SEARCH = (ONNX, SAVED_MODEL)
OF_MODELS = FORMATS[:-1]  # triton takes an artefact
# Each option: its formats, its help and its argparse settings. Options without effect are errors:
# a user who passes --length-penalty with --greedy expects an effect.
Settings: TypeAlias = dict[str, Any]
Options: TypeAlias = dict[str, tuple[tuple[str, ...], str, Settings]]


def layers_and_heads(text: str) -> list[tuple[int, int]]:
    """Parses the pairs of `LAYER:HEAD,LAYER:HEAD`."""
    pairs = (pair.split(":") for pair in text.split(","))
    return [(int(layer), int(head)) for layer, head in pairs]


SWITCH: Settings = {"action": "store_true"}
NUMBER: Settings = {"type": int, "metavar": "N"}
REAL: Settings = {"type": float, "metavar": "X"}
SEARCHES: Options = {
    "beam_width": (WITH_SEARCH, "beam search of this width (4)", NUMBER),
    "greedy": (WITH_SEARCH, "greedy search", SWITCH),
    "sampling": (WITH_SEARCH, "random sampling", SWITCH),
    "forward": (WITH_SEARCH, "no search: the forward pass", SWITCH),
}
SEARCH_OPTIONS: Options = {
    "length_penalty": (WITH_SEARCH, "length penalty of beam search (0.6)", REAL),
    "temperature": (WITH_SEARCH, "sampling temperature (1.0)", REAL),
    "top_k": (WITH_SEARCH, "sample from the N likeliest tokens (0: all)", NUMBER),
    "top_p": (WITH_SEARCH, "sample from the tokens of this total probability (1.0: all)", REAL),
    "num_samples": (WITH_SEARCH, "samples per source (1)", NUMBER),
    "token_scores": (WITH_SEARCH, "also write the log-probability of each token", SWITCH),
    "alignments": (
        WITH_SEARCH,
        "also write the attention to the source: the mean of all heads of the last layer, or of "
        "some, as in --alignments=-1:0,-1:3",
        {"nargs": "?", "const": True, "type": layers_and_heads, "metavar": "LAYER:HEAD,..."},
    ),
}
OPTIONS: Options = {
    "tokenizer": (OF_MODELS, "tokenizer to include, NAME.model", {}),
    "target_tokenizer": (OF_MODELS, "tokenizer of the target, if different", {}),
    "max_length": (
        OF_MODELS,
        "maximum number of generated tokens (source + 50); for other engines, of a text's tokens",
        NUMBER,
    ),
    "tolerance": (
        (ONNX, SAVED_MODEL, CTRANSLATE2),
        "largest relative difference from Keras",
        REAL,
    ),
    "precision": (
        (ONNX, CTRANSLATE2),
        f"one of {', '.join(signature.PRECISIONS)} (float32); ctranslate2 has others",
        {},
    ),
    "text": (
        (ONNX, TRITON),
        "onnx: also write a file from text to text; triton: serve that file",
        SWITCH,
    ),
    "max_source_length": ((ONNX,), "longest source in tokens (512)", NUMBER),
    "fuse": (
        (ONNX,),
        "standard ONNX operators only, if the weights stay float",
        {"action": "store_false"},
    ),
    "keep_float": (
        (ONNX,),
        "prefix of paths of weights that stay float32; can be repeated",
        {"action": "append", "metavar": "PATH"},
    ),
    "layout": (
        (ONNX,),
        "one file, or two with the loop outside (loop)",
        {"choices": signature.LAYOUTS},
    ),
    "options": (
        WITH_SEARCH,
        "options of a search call that become model inputs, such as beam_width",
        {"nargs": "+", "metavar": "NAME"},
    ),
    "name": ((TRITON,), "name of the model (the folder's)", {}),
    "op_library": (
        (TRITON,),
        "path of onnxruntime-extensions on the server; with --text",
        {"metavar": "PATH"},
    ),
    "device": ((TRITON,), "where the model runs (cpu)", {"choices": ("cpu", "gpu")}),
    "instances": ((TRITON,), "copies of the model (1)", NUMBER),
    "threads": ((TRITON,), "threads per batch (all cores)", NUMBER),
    "max_batch_size": ((TRITON,), "maximum rows of a batch (64); 0 disables batching", NUMBER),
    "queue_delay": ((TRITON,), "microseconds that a request may wait (2000)", NUMBER),
}
BEAM = ("beam_width", "length_penalty")
SAMPLING = ("temperature", "top_k", "top_p", "num_samples")
RECORDS = ("token_scores", "alignments")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line.

    Parsed arguments hold only the given options, because the exporters set the defaults.
    """
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export",
        description="Export a saved model to ONNX, a SavedModel or another engine, or write an "
        "artefact into a Triton model repository.",
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
        for name, (formats, text, settings) in options.items():
            which = "" if formats == OF_MODELS else f"{', '.join(formats)}: "
            group.add_argument(_flag(name), dest=name, help=which + text, **settings)
    return parser


def _flag(name: str) -> str:
    return "--no-fuse" if name == "fuse" else f"--{name}".replace("_", "-")


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
            made.error(f"{', '.join(map(_flag, given))}: only with {where}")
    return arguments


def chosen(arguments: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """Returns the given options among `names`, with their values."""
    return {name: value for name, value in vars(arguments).items() if name in names}


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
        print(f"{parser().prog}: {error}", file=sys.stderr)
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
