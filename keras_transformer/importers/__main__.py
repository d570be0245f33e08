"""Imports from the shell: `python -m keras_transformer.importers bergamot FOLDER OUT`."""

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.files import whole_folder
from keras_transformer.types import StrPath

MODEL, TOKENIZER, TARGET_TOKENIZER = "model.keras", "tokenizer.model", "target_tokenizer.model"
ORIGINS = ("bergamot", "bert", "ctranslate2", "gpt2", "marian", "whisper")
# Arguments of `--export onnx` by their names in Python; a SavedModel takes only `max_length`.
EXPORT = ("precision", "text", "max_length", "shortlist")
SEARCH = ("max_length", "beam_width")  # any export takes them


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line. Its result lacks `EXPORT` options not given."""
    command = argparse.ArgumentParser(
        prog="python -m keras_transformer.importers",
        description="Convert a published model to Keras, or export it at once.",
        argument_default=argparse.SUPPRESS,
    )
    command.add_argument("origin", choices=ORIGINS)
    command.add_argument("folder", help="the published files of the model")
    command.add_argument(
        "out",
        help=f"folder for {MODEL} and {TOKENIZER}, or for the export: new, empty, or an earlier "
        "result, which is replaced",
    )
    command.add_argument(
        "--export", choices=("onnx", "saved_model"), default=None, help="export format"
    )
    command.add_argument("--precision", help="onnx: float32 (default), float16, int8 or another")
    command.add_argument("--text", action="store_true", help="onnx: also export text to text")
    command.add_argument(
        "--shortlist",
        action="store_true",
        help="onnx: use bergamot's shortlist, lex.*.bin",
    )
    command.add_argument("--max-length", type=int, help="maximum generated tokens (source + 50)")
    command.add_argument(
        "--beam-width", type=int, metavar="W", help="of the search (default 1: greedy)"
    )
    command.add_argument(
        "--quiet", action="store_true", default=False, help="no progress on stderr"
    )
    return command


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. An option that does not apply to the export is an error."""
    command = parser()
    arguments = command.parse_args(argv)
    given = [name for name in dict.fromkeys((*EXPORT, *SEARCH)) if name in arguments]
    only = {None: (), "saved_model": SEARCH, "onnx": (*EXPORT, *SEARCH)}[arguments.export]
    if others := [name for name in given if name not in only]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        formats = "onnx or saved_model" if set(others) <= set(SEARCH) else "onnx"
        command.error(f"{flags}: only with --export {formats}")
    if "shortlist" in arguments and arguments.origin != "bergamot":
        command.error("--shortlist: only bergamot has a shortlist")
    if "beam_width" in arguments:
        if arguments.origin == "bert":
            command.error("--beam-width: bert is an encoder, which no search runs")
        if arguments.beam_width < 1:
            command.error(f"--beam-width must be at least 1, got {arguments.beam_width}")
    return arguments


def load(origin: str, folder: StrPath) -> tuple[Any, tuple[Any, ...]]:
    """Returns the model and its tokenizers: one, or the source's and the target's."""
    from keras_transformer import importers

    model, tokenizers = getattr(importers, origin).load(folder)
    return model, tokenizers if isinstance(tokenizers, tuple) else (tokenizers,)


def check_out(out: StrPath) -> None:
    """Raises `ValueError` unless `out` is missing, empty or an earlier result without export."""
    path = pathlib.Path(out)
    reason = "it is a file" if path.exists() else None
    if path.is_dir():
        others = {item.name for item in path.iterdir()} - {MODEL, TOKENIZER, TARGET_TOKENIZER}
        reason = f"it holds {min(others)}" if others else None
    if reason:
        raise ValueError(
            f"{path} exists and is not an earlier result of this command ({reason}), so it was "
            "left unchanged. Choose another path, or remove it first."
        )


def run(arguments: argparse.Namespace) -> None:
    """Imports the model and writes it. Errors are raised before anything is written."""
    if arguments.export is None:
        check_out(arguments.out)
    model, tokenizers = load(arguments.origin, arguments.folder)
    if arguments.export is None:
        with whole_folder(arguments.out) as folder:
            model.save(folder / MODEL)
            for name, tokenizer in zip((TOKENIZER, TARGET_TOKENIZER), tokenizers, strict=False):
                tokenizer.save(folder / name)
        return
    from keras_transformer import export, importers
    from keras_transformer.search import BeamSearch, GreedySearch

    options = {name: getattr(arguments, name) for name in EXPORT if name in arguments}
    search, width = None, getattr(arguments, "beam_width", 1)
    if hasattr(model, "decode_step"):  # as in the origins, without the unknown token
        search = GreedySearch(allow_unknown=False)
        if width > 1:
            search = BeamSearch(width, allow_unknown=False)
    if getattr(model, "reads_start", False):
        settings = getattr(importers, arguments.origin).read_settings(arguments.folder)
        search = importers.speech_search(settings, tokenizers[0], width)
    if "shortlist" in options:
        from keras_transformer.importers import bergamot

        options["shortlist"] = bergamot.load_shortlist(arguments.folder)
    if len(tokenizers) > 1:
        options["target_tokenizer"] = tokenizers[1]
    write = export.export_onnx if arguments.export == "onnx" else export.export_saved_model
    write(model, arguments.out, tokenizers[0], search, verbose=not arguments.quiet, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 0, or 1 after an error message."""
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
