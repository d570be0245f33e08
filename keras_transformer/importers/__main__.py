"""Imports from the shell: `python -m keras_transformer.importers bergamot FOLDER OUT`."""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.files import whole_folder

MODEL, TOKENIZER, TARGET_TOKENIZER = "model.keras", "tokenizer.model", "target_tokenizer.model"
# Arguments that only an export has, by their names in Python.
EXPORT = ("precision", "text", "max_length", "shortlist")


def parser():
    """The parser of the command line; what is not given is not in the result."""
    made = argparse.ArgumentParser(
        prog="python -m keras_transformer.importers",
        description="Make a Keras model of a published one, or serve it at once.",
        argument_default=argparse.SUPPRESS,
    )
    made.add_argument("origin", choices=("bergamot", "bert", "gpt2", "marian"))
    made.add_argument("folder", help="the files of the model as they were published")
    made.add_argument(
        "out", help=f"folder for {MODEL} and {TOKENIZER}, or for the export; replaced if it exists"
    )
    made.add_argument(
        "--export", choices=("onnx", "saved_model"), default=None, help="what serves instead"
    )
    made.add_argument("--precision", help="of onnx: float32 (default), float16, int8 or another")
    made.add_argument("--text", action="store_true", help="of onnx: also from text to text")
    made.add_argument(
        "--shortlist", action="store_true", help="of onnx: only bergamot's likely words, lex.*.bin"
    )
    made.add_argument("--max-length", type=int, help="most generated tokens (source + 50)")
    made.add_argument(
        "--beam-width", type=int, default=1, metavar="W", help="of the search (1: greedy)"
    )
    made.add_argument("--quiet", action="store_true", default=False, help="no progress on stderr")
    return made


def parse(argv=None):
    """The arguments; those that do not apply to what is asked for are an error."""
    made = parser()
    arguments = made.parse_args(argv)
    given = [name for name in EXPORT if name in arguments]
    only = {None: (), "saved_model": ("max_length",), "onnx": EXPORT}[arguments.export]
    if set(given) - set(only):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given if name not in only)
        made.error(f"{flags}: only with --export onnx")
    if "shortlist" in arguments and arguments.origin != "bergamot":
        made.error("--shortlist: only bergamot's models come with one")
    return arguments


def load(origin, folder):
    """`(model, tokenizers)` of a published model: one, or the source's and the target's."""
    from keras_transformer import importers

    model, tokenizers = getattr(importers, origin).load(folder)
    return model, tokenizers if isinstance(tokenizers, tuple) else (tokenizers,)


def run(arguments):
    """Imports the model and writes it; whatever is wrong is known before anything is written."""
    model, tokenizers = load(arguments.origin, arguments.folder)
    if arguments.export is None:
        with whole_folder(arguments.out) as folder:
            model.save(folder / MODEL)
            for name, tokenizer in zip((TOKENIZER, TARGET_TOKENIZER), tokenizers, strict=False):
                tokenizer.save(folder / name)
        return
    from keras_transformer import export
    from keras_transformer.search import BeamSearch, GreedySearch

    options = {name: getattr(arguments, name) for name in EXPORT if name in arguments}
    search = None
    if hasattr(model, "decode_step"):  # as the origins search: never the unknown token
        search = GreedySearch(allow_unknown=False)
        if arguments.beam_width > 1:
            search = BeamSearch(arguments.beam_width, allow_unknown=False)
    if "shortlist" in options:
        from keras_transformer.importers import bergamot

        options["shortlist"] = bergamot.load_shortlist(arguments.folder)
    if len(tokenizers) > 1:
        options["target_tokenizer"] = tokenizers[1]
    write = export.export_onnx if arguments.export == "onnx" else export.export_saved_model
    write(model, arguments.out, tokenizers[0], search, verbose=not arguments.quiet, **options)


def main(argv=None):
    """Runs the command; returns the exit status: 0, or 1 with the reason told."""
    arguments = parse(argv)
    from keras_transformer.export import ExportError

    try:
        run(arguments)
    except (ExportError, ImportError, OSError, TypeError, ValueError) as error:
        print(f"{parser().prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
