"""Translates documents on the command line.

    python -m keras_transformer.export.documents out/onnx page.html --output page.de.html

The format follows from the file's name: plain text, HTML, Markdown, subtitles (SRT, VTT), or a
catalogue of gettext (PO).
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from keras_transformer.export.artefact.messages import flags_of, in_shell
from keras_transformer.export.artefact.reader import ArtefactError
from keras_transformer.export.documents import DocumentTranslator, translate_file
from keras_transformer.export.documents.formats import FORMATS
from keras_transformer.export.runtime import Translator


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.documents",
        description="Translates documents; their markup stays.",
    )
    parser.add_argument("artefact", help="folder of an exported translator")
    parser.add_argument("documents", nargs="+", help="files in UTF-8")
    parser.add_argument("--output", "-o", required=True, help="the new file; a folder for several")
    parser.add_argument("--format", choices=list(FORMATS), help="defaults to the file's suffix")
    parser.add_argument("--language", default="en", help="source language (ISO 639-1)")
    parser.add_argument("--target-language", help="for `lang` attributes; they stay by default")
    parser.add_argument(
        "--source-prefix", default="", help="before each sentence, such as '>>fra<<'"
    )
    parser.add_argument(
        "--glossary",
        help="TSV: the target phrase must be in a sentence with the source phrase",
    )
    parser.add_argument("--threads", type=int, help="threads of a batch")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    args = parse_arguments(arguments)
    output = pathlib.Path(args.output)
    try:
        translator = Translator(args.artefact, threads=args.threads)
        options = {"glossary": args.glossary} if args.glossary else {}
        documents = DocumentTranslator(
            translator, args.language, args.target_language, args.source_prefix, **options
        )
        for path, target in _targets(args.documents, output):
            translate_file(documents, path, target, args.format)
    except (ArtefactError, OSError, ValueError, ImportError) as error:
        print(f"error: {in_shell(str(error), flags_of(vars(args)))}", file=sys.stderr)
        return 1
    if documents.untranslated:
        print(f"error: {documents.untranslated} sentences are not translated", file=sys.stderr)
        return 1
    return 0


def _targets(
    documents: Sequence[str], output: pathlib.Path
) -> list[tuple[pathlib.Path, pathlib.Path]]:
    """Returns each document with the file of its translation.

    Raises:
        ValueError: a file in the output folder would replace a document, or another translation.
    """
    paths = [pathlib.Path(document) for document in documents]
    if len(paths) == 1 and not output.is_dir():
        return [(paths[0], output)]
    taken = {path.resolve(): "is a document itself" for path in paths}
    for path in paths:
        target = (output / path.name).resolve()
        if target in taken:
            raise ValueError(
                f"{path} would become {output / path.name}, which {taken[target]}. Name another "
                "--output."
            )
        taken[target] = f"is the translation of {path}"
    return [(path, output / path.name) for path in paths]


if __name__ == "__main__":
    sys.exit(main())
