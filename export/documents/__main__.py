"""Translates documents on the command line.

    python -m keras_transformer.export.documents out/onnx page.html --output page.de.html

The format follows from the file's name: plain text, HTML, Markdown, subtitles (SRT, VTT), or a
catalogue of gettext (PO).
"""

import argparse
import pathlib
import sys

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
    parser.add_argument(
        "--glossary",
        help="TSV or TBX: the target phrase must be in a sentence with the source phrase",
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
        documents = DocumentTranslator(translator, args.language, **options)
        for path in map(pathlib.Path, args.documents):
            inside = len(args.documents) > 1 or output.is_dir()
            translate_file(documents, path, output / path.name if inside else output, args.format)
    except (ArtefactError, OSError, ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
