"""Exports from the shell: `python -m keras_transformer.export MODEL.keras OUT --precision int8`."""

import argparse
import os
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.export.artefact import signature
from keras_transformer.export.staging import ExportError, Progress

# Arguments that only some exports have, by their names in Python. An argument that does not apply
# is an error, not ignored: who passes --length-penalty with --greedy has something else in mind.
ONNX = ("max_source_length", "fuse", "keep_float", "layout", "text")
WHICH = ("greedy", "sampling", "forward")
BEAM = ("beam_width", "length_penalty")
SAMPLING = ("temperature", "top_k", "top_p", "num_samples")
# Engines that search by themselves: their exports hold no search.
ENGINES = ("ctranslate2", "marian")
SHARED = ("max_length", "tolerance")
FLAGS = {"fuse": "--no-fuse"}  # those that are not their name with dashes


def parser():
    """The parser of the command line.

    Arguments that are not given are not in the result: the exporters' own defaults hold.
    """
    made = argparse.ArgumentParser(
        prog="python -m keras_transformer.export",
        description="Export a saved model: with its search to ONNX or as a SavedModel, or for "
        "another engine.",
        argument_default=argparse.SUPPRESS,
    )
    made.add_argument("model", help="what `model.save` wrote, MODEL.keras")
    made.add_argument("out", help="folder to write; an earlier export there is replaced")
    made.add_argument("--format", choices=("onnx", "saved_model", *ENGINES), default="onnx")
    made.add_argument("--tokenizer", help="tokenizer to put beside the model, NAME.model")
    made.add_argument("--target-tokenizer", help="that of what is written, if it is another")
    made.add_argument(
        "--max-length",
        type=int,
        help="most generated tokens (source + 50); of another engine's model most tokens of a text",
    )
    made.add_argument("--tolerance", type=float, help="largest relative difference from Keras")
    search = made.add_argument_group(
        "search", "One of these; the default is a beam of 4 where the model can generate."
    )
    which = search.add_mutually_exclusive_group()
    which.add_argument("--beam-width", type=int, metavar="W", help="beam search of this width")
    which.add_argument("--greedy", action="store_true", default=False, help="greedy search")
    which.add_argument("--sampling", action="store_true", default=False, help="random sampling")
    which.add_argument(
        "--forward", action="store_true", default=False, help="no search: the forward pass"
    )
    search.add_argument("--length-penalty", type=float, help="of the beam (0.6)")
    search.add_argument("--temperature", type=float, help="of the sampling (1.0)")
    search.add_argument("--top-k", type=int, help="of the sampling (0: no limit)")
    search.add_argument("--top-p", type=float, help="of the sampling (1.0: no limit)")
    search.add_argument("--num-samples", type=int, help="of the sampling (1)")
    onnx = made.add_argument_group("onnx")
    onnx.add_argument(
        "--precision",
        help=f"one of {', '.join(signature.PRECISIONS)} (float32); of ctranslate2 its own",
    )
    onnx.add_argument("--max-source-length", type=int, help="tokens (512)")
    onnx.add_argument(
        "--no-fuse", action="store_false", dest="fuse", help="ONNX's own operators only"
    )
    onnx.add_argument(
        "--keep-float", action="append", metavar="PATH",
        help="weights whose path starts so stay float32; can be repeated",
    )  # fmt: skip
    onnx.add_argument(
        "--layout", choices=signature.LAYOUTS, help="one file, or two with the loop outside (loop)"
    )
    onnx.add_argument("--text", action="store_true", help="also write a file from text to text")
    made.add_argument("--quiet", action="store_true", default=False, help="no progress on stderr")
    return made


def parse(argv=None):
    """The arguments; those that do not apply to what is asked for are an error."""
    made = parser()
    arguments = made.parse_args(argv)
    which = arguments.greedy or arguments.sampling or arguments.forward
    engine = arguments.format in ENGINES
    precise = arguments.format in ("onnx", "ctranslate2")
    for names, apply, where in (
        (ONNX, arguments.format == "onnx", "--format onnx"),
        (("precision",), precise, "--format onnx or ctranslate2"),
        (("tolerance",), arguments.format != "marian", "another --format"),
        ((*BEAM, *SAMPLING, *WHICH), not engine, "--format onnx or saved_model"),
        (BEAM, not which, "a beam search"),
        (SAMPLING, arguments.sampling, "--sampling"),
        (("max_length",), not arguments.forward, "a search"),
    ):
        given = chosen(arguments, names)
        given = [name for name in given if name not in WHICH or given[name]]
        if given and not apply:
            flags = ", ".join(FLAGS.get(name, f"--{name.replace('_', '-')}") for name in given)
            made.error(f"{flags}: only with {where}")
    return arguments


def chosen(arguments, names):
    """Those of `names` that were given, with their values."""
    return {name: value for name, value in vars(arguments).items() if name in names}


def chosen_search(arguments, model):
    """The search that the arguments ask for, or `None` for a forward pass."""
    from keras_transformer.search import BeamSearch, GreedySearch, Sampling

    if arguments.greedy:
        return GreedySearch()
    if arguments.sampling:
        return Sampling(**chosen(arguments, SAMPLING))
    beam = chosen(arguments, BEAM)
    if arguments.forward or not (beam or hasattr(model, "decode_step")):
        return None
    return BeamSearch(**beam)


def main(argv=None):
    """Runs the command; returns the exit status: 0, or 1 or 128 + signal, with the reason told."""
    arguments = parse(argv)
    try:
        run(arguments)
    except KeyboardInterrupt:
        print(f"interrupted; what was at {arguments.out} is as before", file=sys.stderr)
        return 130
    except Stopped as error:
        return tell_stop(error, arguments.out)
    except Exception as error:
        if Progress.pending is not None:  # a signal came in compiled code, which made this of it
            return tell_stop(Progress.pending, arguments.out)
        if not isinstance(error, (ExportError, ImportError, OSError, TypeError, ValueError)):
            raise
        print(f"{parser().prog}: {error}", file=sys.stderr)
        return 1
    return 0


def tell_stop(stopped, out):
    """Says which signal ended the export; returns the exit status."""
    (number,) = stopped.args
    name = signal.Signals(number).name
    print(f"stopped by {name}; what was at {out} is as before", file=sys.stderr)
    return 128 + number


def run(arguments):
    """Loads the model and exports it.

    Keras and TensorFlow are imported here, so that --help and wrong arguments are told at once.
    """
    import keras

    import keras_transformer  # noqa: F401, registers every class
    from keras_transformer import export
    from keras_transformer.text.tokenizer import Tokenizer

    model = keras.saving.load_model(arguments.model, compile=False)
    given = chosen(arguments, ("tokenizer", "target_tokenizer"))
    tokenizers = {name: Tokenizer.load(path) for name, path in given.items()}
    tokenizer = tokenizers.pop("tokenizer", None)
    if arguments.format not in ENGINES:
        tokenizers["search"] = chosen_search(arguments, model)
    write = getattr(export, f"export_{arguments.format}")
    options = chosen(arguments, (*SHARED, "precision", *ONNX))
    write(
        model, arguments.out, tokenizer, **tokenizers, verbose=not arguments.quiet, **options
    )  # fmt: skip


class Stopped(BaseException):
    """A signal, by its number, that asks the process to end."""


def stop(number, frame):
    """Handles a signal: unwinds the export, which removes what it has written."""
    Progress.pending = Stopped(number)
    raise Progress.pending


if __name__ == "__main__":
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP, and nohup has it ignored
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    sys.exit(main())
