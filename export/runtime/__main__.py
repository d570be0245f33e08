"""The command line: `python -m keras_transformer.export.runtime FOLDER < in.txt > out.txt`.

With a Whisper model it transcribes a sound file instead: `... FOLDER a.wav --format srt`.

It uses argparse, so that servers need no further package.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

from keras_transformer.call_options import CALL_OPTIONS, CONSTRAINT_OPTIONS
from keras_transformer.export.artefact.messages import flags_of, in_shell
from keras_transformer.export.artefact.reader import read_task
from keras_transformer.export.artefact.signature import ALIGNMENTS
from keras_transformer.export.runtime.check import check
from keras_transformer.export.runtime.console import LineProgress, abandon, tell
from keras_transformer.export.runtime.lines import (
    Format,
    format_result,
    iter_lines,
    stream_line,
    without_mark,
)
from keras_transformer.export.runtime.predictor import open_runner
from keras_transformer.export.runtime.speech import command
from keras_transformer.text.glossary import Glossary
from keras_transformer.text.tokenizer import Tokenizer

# Options that only some tasks have. With other tasks they are an error.
_TASKS = {
    "--n-best": ("translate", "generate", "transcribe", "classify"),
    "--seed": ("translate", "generate", "transcribe"),
    "--with-prompt": ("generate",),
    "--stream": ("translate", "generate"),
    "--alignments": ("translate",),
    "--glossary": ("translate",),
}
# Options whose value is the path of a file, and the classes that read it.
_FILES = {"glossary": Glossary}
# Options of a search call. Artefacts take some of them.
_SEARCH_OPTIONS = {
    name: option for name, option in (CALL_OPTIONS | CONSTRAINT_OPTIONS).items() if option.meaning
}
_TYPES: dict[str, tuple[type, str]] = {"int32": (int, "N"), "float32": (float, "X")}
_DESCRIPTION = (
    "Reads standard input line by line, and writes results to standard output. Translators and "
    "language models write a text; classifiers a label, TAB, its probability; taggers word/tag; "
    "question answering, from question TAB passage, an answer; other models JSON. Two texts have "
    "a TAB between them. Models that read arrays read JSON: an array, or an object of texts and "
    "arrays by input name. Whisper models transcribe a sound file."
)
_EPILOG = (
    "A line that cannot be answered gives an empty line (none with --n-best), and "
    "its number and the reason on standard error. Exit status: 0 every line was answered; "
    "1 some were not; 2 wrong arguments or a bad artefact; 3 standard input or output is "
    "closed or failed, as on a full disk; 130 interrupted; 141 the reader of the output left. "
    "With --check: 0 it serves as asked; 1 only on the CPU instead; 2 it cannot."
)


# The command's own arguments. Searches and sounds add their options as groups.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "folder": {"help": "folder that export_onnx wrote"},
    "--check": {
        "action": "store_true",
        "help": "only check whether this machine can serve the artefact, and on which provider",
    },
    "--n-best": {
        "type": int,
        "metavar": "N",
        "help": "write up to N hypotheses or labels of each line, each as: line number, score or "
        "probability, text, separated by tabs",
    },
    "--json": {
        "action": "store_true",
        "help": "write one line of JSON for each line, with all fields of the result",
    },
    "--seed": {
        "type": int,
        "metavar": "N",
        "help": "seed of sampling; the same seed gives the same texts",
    },
    "--alignments": {
        "action": "store_true",
        "help": "write TAB and the alignment after each text, as pairs of source and target word: "
        "0-0 1-2; the artefact's search must have alignments",
    },
    "--stream": {
        "action": "store_true",
        "help": "write each text while it is computed; the artefact must have layout='steps'",
    },
    "--with-prompt": {
        "action": "store_true",
        "help": "write the prompt before its continuation",
    },
    "--tokens-per-batch": {
        "type": int,
        "default": 2048,
        "metavar": "N",
        "help": "tokens read by a batch, padding included (default %(default)s)",
    },
    "--read-ahead": {
        "type": int,
        "default": 1024,
        "metavar": "N",
        "help": "lines that are sorted by length together; 1 answers each line at once "
        "(default %(default)s)",
    },
    "--threads": {
        "type": int,
        "metavar": "N",
        "help": "threads of a batch (default: every core, or one with several workers or a small "
        "search)",
    },
    "--workers": {
        "type": int,
        "metavar": "N",
        "help": "batches at the same time (default: 1, or every core with a small search); for "
        "many lines on a CPU pass the number of its cores",
    },
    "--provider": {
        "action": "append",
        "metavar": "NAME",
        "help": "onnxruntime's execution provider, such as CUDAExecutionProvider; can be repeated",
    },
    "--quiet": {"action": "store_true", "help": "no progress bar, no provider line"},
}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.runtime",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    for name, settings in _ARGUMENTS.items():
        parser.add_argument(name, **settings)
    group = parser.add_argument_group(
        "search", "Options that the artefact takes. Their defaults are the exported values."
    )
    for name, option in _SEARCH_OPTIONS.items():
        kind, metavar = (str, "TEXT") if option.rank > 1 else _TYPES[option.dtype]
        action, more = ("append", "; may be repeated") if option.rank == 3 else ("store", "")
        group.add_argument(
            _flag(name), type=kind, metavar=metavar, action=action, help=option.meaning + more
        )
    group.add_argument(
        "--glossary",
        metavar="FILE",
        help="TSV: the target phrase must be in the output where the source phrase is in the line",
    )
    command.add_options(parser)
    options = parser.parse_args(arguments)
    search = [_flag(name) for name in _search_options(options)]
    given = [*_given(options), *search, *(["--json"] if options.json else [])]
    if options.check and given:
        parser.error(f"--check answers no lines: leave out {', '.join(given)}")
    options.hears = command.check_options(parser, options, ["--check"] * options.check or given)
    if options.n_best is not None and options.n_best < 1:
        parser.error(f"--n-best must be at least 1, got {options.n_best}")
    if options.n_best is not None and options.json:
        parser.error("--json writes all hypotheses and labels: leave out --n-best")
    if options.stream and (options.n_best or options.json or options.alignments):
        parser.error("--stream writes texts: leave out --n-best, --json and --alignments")
    return options


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _given(options: argparse.Namespace) -> list[str]:
    """Returns the options of `_TASKS` that were passed. 0 is a seed."""
    values = {name: getattr(options, name[2:].replace("-", "_")) for name in _TASKS}
    return [name for name, value in values.items() if value is not None and value is not False]


def _search_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of the search that were passed."""
    names = [*_SEARCH_OPTIONS, *_FILES]
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and returns the exit status."""
    options = _parse(arguments)
    from_files = options.check or options.hears
    streams = {"output": sys.stdout} if from_files else {"input": sys.stdin, "output": sys.stdout}
    for name, stream in streams.items():
        if stream is None:
            tell(f"error: standard {name} is closed\n")
            return 3
    shown = not options.quiet and sys.stderr is not None and sys.stderr.isatty()
    size = 0 if from_files else os.fstat(sys.stdin.fileno()).st_size
    progress = LineProgress(size, shown)
    try:
        if options.check:
            return check(options.folder, options.provider, threads=options.threads)
        if options.hears:
            return command.transcribe(options, sys.stdout.buffer, shown)
        return _serve_lines(options, sys.stdin.buffer, sys.stdout.buffer, progress)
    except OSError as error:
        abandon(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return 141
        progress.say(f"error: standard input or output failed: {error.strerror}")
        return 3
    except ValueError as error:
        flags = flags_of(vars(options), providers="--provider", count="--n-best")
        progress.say(f"error: {in_shell(str(error), flags)}")
        return 2
    except KeyboardInterrupt:
        rest = (
            "the last line is cut off" if options.stream else "what was written so far is complete"
        )
        progress.say(f"interrupted; {rest}")
        return 130


def _serve_lines(
    options: argparse.Namespace, source: BinaryIO, target: BinaryIO, progress: LineProgress
) -> int:
    """Writes the results of the lines of one binary file to another; returns the exit status."""
    task = read_task(options.folder)
    for option in _given(options):
        if task not in _TASKS[option]:
            raise ValueError(
                f"{option} goes with the tasks {', '.join(_TASKS[option])}; this artefact's is "
                f"{task!r}"
            )
    for name, kind in _FILES.items():
        if (path := getattr(options, name)) is not None:
            setattr(options, name, _read(kind, _flag(name), path))
    with contextlib.redirect_stdout(sys.stderr):  # onnxruntime prints missing libraries
        runner = open_runner(
            options.folder, options.provider, threads=options.threads, workers=options.workers
        )
    if options.alignments and ALIGNMENTS not in [x["name"] for x in runner.manifest["outputs"]]:
        raise ValueError(
            "--alignments: this artefact has none; export it with a search that has alignments=True"
        )
    kinds = {type(runner.tokenizer), type(runner.target_tokenizer)} if options.alignments else set()
    if not kinds <= {Tokenizer}:
        raise ValueError(
            "--alignments: words need SentencePiece tokenizers, but this artefact has others; its "
            "session returns the alignments of tokens"
        )
    if not options.quiet:
        progress.say(f"running on {runner.provider}")
    lines = without_mark(progress.reading(iter_lines(source)))
    sizes = options.tokens_per_batch, options.read_ahead
    results = runner.results(lines, options.seed, *sizes, **_search_options(options))
    if options.stream:
        runner.check_streams()
        search = _search_options(options) | {"seed": options.seed}
        if task == "generate":
            search["with_prompt"] = options.with_prompt
        results = (stream_line(runner, line, target, search) for line in lines)
    line_format = Format(options.json, options.n_best, options.with_prompt, options.alignments)
    failed = 0
    for number, result in enumerate(results, 1):
        target.write(b"\n" if options.stream else format_result(number, result, line_format))
        target.flush()
        progress.wrote_line()
        if result.error is not None:
            failed += 1
            progress.say(f"line {number} is not {runner.done}: {result.error}")
    progress.close()
    if failed:
        progress.say(f"{failed} lines were not {runner.done}")
    return 1 if failed else 0


def _read(kind: Any, flag: str, path: str) -> Any:
    try:
        return kind.read(path)
    except OSError as error:
        raise ValueError(f"{flag} {path} cannot be read: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
