"""Imports from the shell: `python -m keras_transformer.importers bergamot FOLDER OUT`."""

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.export.artefact.messages import in_shell
from keras_transformer.export.command import (
    LITERT,
    OF_MODELS,
    ONNX,
    OPTIONS,
    REAL,
    RECORDS,
    SEARCH_OPTIONS,
    SEARCHES,
    WITH_SEARCH,
    Options,
    add_options,
    chosen,
    flag,
    flags,
    save_head,
    warnings_in_shell,
)
from keras_transformer.files import whole_folder
from keras_transformer.importers.checkpoint import FILES
from keras_transformer.types import StrPath

MODEL, HEAD = "model.keras", "head.json"
TOKENIZER, TARGET_TOKENIZER = "tokenizer.model", "target_tokenizer.model"
ORIGINS = sorted(FILES)
ARTEFACTS = (ONNX, LITERT)  # the runtime opens them
# Options whose values the function `load_NAME` of an origin reads from the folder.
EXTRAS: Options = {
    "shortlist": (ARTEFACTS, "use bergamot's shortlist, lex.*.bin", {"action": "store_true"})
}
# The options of an export. The origin has the tokenizers and the head.
SEARCH: Options = {
    "beam_width": (WITH_SEARCH, "of the search (1: greedy)", SEARCHES["beam_width"][2]),
    **{name: SEARCH_OPTIONS[name] for name in RECORDS},
}
LOADING: Options = {
    "seconds": (
        OF_MODELS,
        "Whisper reads samples instead of features, in windows of this length, such as 30",
        REAL,
    ),
    "source": (OF_MODELS, "the language of mBART's sources, such as en_XX", {}),
    "target": (OF_MODELS, "the language of mBART's targets, such as de_DE", {}),
    "prompt": (OF_MODELS, "a prompt of Sentence-Transformers before every text, by name", {}),
}
# The attribute of an origin without which it has no such option.
NEEDED = {
    "seconds": "read_settings",
    "source": "LANGUAGES",
    "target": "LANGUAGES",
    "prompt": "load_task",
}
EXPORT: Options = {
    **EXTRAS,
    **{
        name: option
        for name, option in OPTIONS.items()
        if {*option[0]} & {*WITH_SEARCH} and "tokenizer" not in name and name != "head"
    },
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line. Its result lacks options that are not given."""
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
    command.add_argument("--export", choices=WITH_SEARCH, default=None, help="export format")
    command.add_argument(
        "--quiet", action="store_true", default=False, help="no progress on stderr"
    )
    add_options(command, LOADING)
    add_options(command.add_argument_group("export", "Options of --export."), EXPORT | SEARCH)
    return command


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments. An option that does not apply to the export is an error."""
    command = parser()
    arguments = command.parse_args(argv)
    for name, (formats, *_) in (EXPORT | SEARCH).items():
        if name in arguments and arguments.export not in formats:
            known = [kind for kind in WITH_SEARCH if kind in formats]
            command.error(f"{flag(name)}: only with --export {' or '.join(known)}")
    for name in EXTRAS:
        having = [origin for origin in ORIGINS if hasattr(importer(origin), f"load_{name}")]
        if name in arguments and arguments.origin not in having:
            command.error(f"{flag(name)}: only {' and '.join(having)} has a {name}")
    for name, attribute in NEEDED.items():
        if name in arguments and not hasattr(importer(arguments.origin), attribute):
            command.error(f"{flag(name)}: {arguments.origin} has no such option")
    given = [flag(name) for name in SEARCH if name in arguments]
    if given and hasattr(importer(arguments.origin), "load_task"):
        command.error(f"{', '.join(given)}: {arguments.origin} is an encoder, which no search runs")
    if getattr(arguments, "beam_width", 1) < 1:
        command.error(f"--beam-width must be at least 1, got {arguments.beam_width}")
    return arguments


def importer(origin: str) -> Any:
    """Returns the module of an origin."""
    from keras_transformer import importers

    return getattr(importers, origin.replace("-", "_"))


def load(origin: str, folder: StrPath, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns the model and its tokenizers: one, or the source's and the target's."""
    module = importer(origin)
    model, tokenizers = getattr(module, "load_task", module.load)(folder, **options)
    return model, tokenizers if isinstance(tokenizers, tuple) else (tokenizers,)


def check_out(out: StrPath) -> None:
    """Raises `ValueError` unless `out` is missing, empty or an earlier result of an import."""
    from keras_transformer.export.artefact_files import ArtefactFiles
    from keras_transformer.export.saved_model import why_not_saved_model

    path = pathlib.Path(out)
    reason = "it is a file" if path.exists() else None
    if path.is_dir():
        names = {item.name for item in path.iterdir()}
        others = names - {MODEL, HEAD, TOKENIZER, TARGET_TOKENIZER}
        reason = f"it holds {min(others)}" if others else None
        if not ArtefactFiles.why_not(path) or not why_not_saved_model(path):
            reason = None
    if reason:
        raise ValueError(
            f"{path} exists and is not an earlier result of this command ({reason}), so it was "
            "left unchanged. Choose another path, or remove it first."
        )


def run(arguments: argparse.Namespace) -> None:
    """Imports the model and writes it. Errors are raised before anything is written."""
    check_out(arguments.out)
    options = chosen(arguments, LOADING)
    model, tokenizers = load(arguments.origin, arguments.folder, **options)
    read_head = getattr(importer(arguments.origin), "read_head", None)
    head = None if read_head is None else read_head(arguments.folder)
    with whole_folder(arguments.out) as folder:
        if arguments.export is not None:
            export(arguments, folder, model, tokenizers, head)
            return
        model.save(folder / MODEL)
        for name, tokenizer in zip((TOKENIZER, TARGET_TOKENIZER), tokenizers, strict=False):
            if tokenizer is not None:  # pictures need none
                tokenizer.save(folder / name)
        if head is not None:
            save_head(head, folder / HEAD)


def export(
    arguments: argparse.Namespace,
    folder: pathlib.Path,
    model: Any,
    tokenizers: tuple[Any, ...],
    head: Any,
) -> None:
    """Exports a model to a folder, and runs a sentence or a sound through it."""
    from keras_transformer import export
    from keras_transformer.importers.trial import try_out

    options = chosen(arguments, EXPORT)
    for name in EXTRAS.keys() & options:
        options[name] = getattr(importer(arguments.origin), f"load_{name}")(arguments.folder)
    if len(tokenizers) > 1:
        options["target_tokenizer"] = tokenizers[1]
    if head is not None and arguments.export in ARTEFACTS:
        options["head"] = head
    write = getattr(export, f"export_{arguments.export}")
    search = make_search(arguments, model, tokenizers[0])
    write(model, folder, tokenizers[0], search, verbose=not arguments.quiet, **options)
    if arguments.export in ARTEFACTS:
        line = try_out(folder)
        if not arguments.quiet:
            print(line, file=sys.stderr)


def make_search(arguments: argparse.Namespace, model: Any, tokenizer: Any) -> Any:
    """Returns the search of the model, without the unknown token, or `None` for an encoder."""
    from keras_transformer import importers
    from keras_transformer.search import BeamSearch, GreedySearch

    width, records = getattr(arguments, "beam_width", 1), chosen(arguments, RECORDS)
    if getattr(model, "reads_start", False):
        if records:
            given = ", ".join(map(flag, records))
            raise ValueError(f"{given}: a transcription has times of words instead. Leave it out.")
        settings = importer(arguments.origin).read_settings(arguments.folder)
        return importers.speech_search(settings, tokenizer, width)
    if not hasattr(model, "decode_step"):
        return None
    if width == 1:
        return GreedySearch(allow_unknown=False, **records)
    return BeamSearch(width, allow_unknown=False, **records)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 0, or 1 after an error message."""
    arguments = parse(argv)
    from keras_transformer.export import ExportError

    try:
        with warnings_in_shell(parser()):
            run(arguments)
    except (ExportError, ImportError, OSError, TypeError, ValueError) as error:
        message = in_shell(str(error), flags(parser()))
        print(f"{parser().prog}: {message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
