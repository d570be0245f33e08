"""Exports from the shell: `python -m keras_transformer.export MODEL.keras OUT --precision int8`."""

import argparse
import os
import signal
import sys
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.export.artefact import signature
from keras_transformer.export.staging import ExportError, Progress

FORMATS = ("onnx", "saved_model", "ctranslate2", "marian", "triton")
SEARCHES = ("greedy", "sampling", "forward")
BEAM = ("beam_width", "length_penalty")
SAMPLING = ("temperature", "top_k", "top_p", "num_samples")
TRITON = ("name", "op_library", "device", "instances", "threads", "max_batch_size", "queue_delay")
# Options, and the formats that have them. An option that does not apply is an error: a user who
# passes --length-penalty with --greedy expects something else.
OPTIONS = (
    (("max_source_length", "fuse", "keep_float", "layout"), FORMATS[:1]),
    (("text",), ("onnx", "triton")),
    (("precision",), ("onnx", "ctranslate2")),
    ((*SEARCHES, *BEAM, *SAMPLING), FORMATS[:2]),
    (("tolerance",), FORMATS[:3]),
    (("tokenizer", "target_tokenizer", "max_length", "quiet"), FORMATS[:4]),
    (TRITON, FORMATS[4:]),
)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line.

    The result has only options that were given: the exporters have the defaults.
    """
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export",
        description="Export a saved model: with its search to ONNX or as a SavedModel, or for "
        "another engine; or write an artefact into a model repository of Triton.",
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("model", help="result of `model.save`, MODEL.keras; for triton the folder of an artefact")
    add("out", help="folder to write, where an earlier export is replaced; for triton a repository")
    add("--format", choices=FORMATS, default="onnx")
    add("--tokenizer", help="tokenizer to put beside the model, NAME.model")
    add("--target-tokenizer", help="tokenizer of the target, if it is another one")
    add(
        "--max-length",
        type=int,
        help="most generated tokens (source + 50); for other engines most tokens of a text",
    )
    add(
        "--precision",
        help=f"one of {', '.join(signature.PRECISIONS)} (float32); ctranslate2 has others",
    )
    add(
        "--text",
        action="store_true",
        help="onnx: also write a file from text to text; triton: serve that file",
    )
    add("--tolerance", type=float, help="largest relative difference from Keras")
    add("--quiet", action="store_true", help="no progress on stderr")
    group = parser.add_argument_group(
        "search", "One of these. The default is a beam of 4 if the model can generate."
    )
    add = group.add_mutually_exclusive_group().add_argument
    add("--beam-width", type=int, metavar="W", help="beam search of this width")
    add("--greedy", action="store_true", help="greedy search")
    add("--sampling", action="store_true", help="random sampling")
    add("--forward", action="store_true", help="no search: the forward pass")
    add = group.add_argument
    add("--length-penalty", type=float, help="of the beam (0.6)")
    add("--temperature", type=float, help="of the sampling (1.0)")
    add("--top-k", type=int, help="of the sampling (0: no limit)")
    add("--top-p", type=float, help="of the sampling (1.0: no limit)")
    add("--num-samples", type=int, help="of the sampling (1)")
    add = parser.add_argument_group("onnx").add_argument
    add("--max-source-length", type=int, help="tokens (512)")
    add("--no-fuse", action="store_false", dest="fuse", help="standard ONNX operators only")
    add(
        "--keep-float",
        action="append",
        metavar="PATH",
        help="prefix of paths of weights that stay float32; can be repeated",
    )
    add("--layout", choices=signature.LAYOUTS, help="one file, or two with the loop outside (loop)")
    add = parser.add_argument_group("triton").add_argument
    add("--name", help="of the model (the folder's)")
    add("--op-library", metavar="PATH", help="onnxruntime-extensions on the server; with --text")
    add("--device", choices=("cpu", "gpu"), help="(cpu)")
    add("--instances", type=int, metavar="N", help="copies of the model (1)")
    add("--threads", type=int, metavar="N", help="of a batch (every core)")
    add("--max-batch-size", type=int, metavar="N", help="(64), or 0 for none")
    add("--queue-delay", type=int, metavar="N", help="microseconds that a request may wait (2000)")
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments; options that do not apply are an error."""
    made = parser()
    arguments = made.parse_args(argv)
    rules = [
        (names, arguments.format in formats, f"--format {' or '.join(formats)}")
        for names, formats in OPTIONS
    ]
    rules += [
        (BEAM, not chosen(arguments, SEARCHES), "a beam search"),
        (SAMPLING, "sampling" in arguments, "--sampling"),
        (("max_length",), "forward" not in arguments, "a search"),
    ]
    for names, applies, where in rules:
        given = chosen(arguments, names)
        if given and not applies:
            flags = ["--no-fuse" if name == "fuse" else f"--{name}" for name in given]
            made.error(f"{', '.join(flags).replace('_', '-')}: only with {where}")
    return arguments


def chosen(arguments: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """The options among `names` that were given, with their values."""
    return {name: value for name, value in vars(arguments).items() if name in names}


def chosen_search(arguments: argparse.Namespace, model: Any) -> Any:
    """The search that the arguments ask for, or `None` for a forward pass."""
    from keras_transformer.search import BeamSearch, GreedySearch, Sampling

    if "greedy" in arguments:
        return GreedySearch()
    if "sampling" in arguments:
        return Sampling(**chosen(arguments, SAMPLING))
    beam = chosen(arguments, BEAM)
    if "forward" in arguments or not (beam or hasattr(model, "decode_step")):
        return None
    return BeamSearch(**beam)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status.

    Returns:
        0; 1 after an error; 128 + its number after a signal. Messages explain errors and signals.
    """
    arguments = parse(argv)
    try:
        run(arguments)
    except KeyboardInterrupt:
        return _report_stop(Stopped(signal.SIGINT), arguments.out)
    except Stopped as error:
        return _report_stop(error, arguments.out)
    except Exception as error:
        if Progress.pending is not None:  # compiled code replaced the exception of a signal
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
    print(f"stopped by {name}; the content of {out} is as before", file=sys.stderr)
    return 128 + number


def run(arguments: argparse.Namespace) -> None:
    """Loads the model and exports it.

    Keras is imported here, so that --help and errors in arguments need no framework.
    """
    from keras_transformer import export

    if arguments.format == "triton":
        options = chosen(arguments, ("text", *TRITON))
        print(export.export_triton(arguments.model, arguments.out, **options))
        return

    import keras

    from keras_transformer.text.tokenizer import Tokenizer

    model = keras.saving.load_model(arguments.model, compile=False)
    given = chosen(arguments, ("tokenizer", "target_tokenizer"))
    options = {"tokenizer": None} | {name: Tokenizer.load(path) for name, path in given.items()}
    if arguments.format in ("onnx", "saved_model"):
        options["search"] = chosen_search(arguments, model)
    names = ("max_length", "tolerance", "precision", "text", *OPTIONS[0][0])
    write = getattr(export, f"export_{arguments.format}")
    verbose = "quiet" not in arguments
    write(model, arguments.out, verbose=verbose, **options, **chosen(arguments, names))


class Stopped(BaseException):
    """The number of a signal that asks the process to end."""


def stop(number: int, frame: FrameType | None) -> None:
    """Handles a signal: unwinds the export, which removes the files that it has written."""
    Progress.pending = Stopped(number)
    raise Progress.pending


if __name__ == "__main__":
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP, and nohup ignores it
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    sys.exit(main())
