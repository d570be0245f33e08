"""The command line of the runtime: lines in, lines out, as a stream, progress on stderr; `--check`.

It is written with argparse: a library for command lines would be one more package to install where
models are served.
"""

import argparse
import contextlib
import os
import sys

from keras_transformer.export.artefact.reader import read_task
from keras_transformer.export.runtime.by_task import DONE, SEEDED, answers, open_runner
from keras_transformer.export.runtime.check import check
from keras_transformer.export.runtime.lines import read_lines
from keras_transformer.export.runtime.progress import Progress, abandon, tell
from keras_transformer.export.runtime.written import written

# Options that only some tasks have: who passes them elsewhere has something else in mind.
_TASKS = {
    "--n-best": ("translate", "generate", "transcribe", "classify"),
    "--seed": SEEDED,
    "--with-prompt": ("generate",),
}
_DESCRIPTION = (
    "Answers standard input, line by line, on standard output, as the artefact's "
    "task says. Text to translate or a prompt gives a text; text to classify a label, TAB, its "
    "probability; words their tags, as word/tag; question TAB passage an answer; other models "
    "JSON. Two texts have a TAB between them. Models that read arrays read JSON: an array, or an "
    "object of texts and arrays by input name."
)
_EPILOG = (
    "A line that cannot be answered gives an empty line (none with --n-best), and "
    "its number and the reason on standard error. Exit status: 0 every line was answered; "
    "1 some were not; 2 wrong arguments or a bad artefact; 3 standard input or output is "
    "closed or failed, as on a full disk; 130 interrupted; 141 the reader of the output left. "
    "With --check: 0 it serves as asked; 1 on another provider than the best; 2 it cannot."
)


def _parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.runtime",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "folder", nargs="?", help="what export_onnx wrote; --check can do without it"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="answer nothing, but say what is wrong with serving the artefact on this machine: "
        "its files, onnxruntime, CUDA's libraries, the driver, and what each provider runs",
    )
    parser.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help="write up to N hypotheses or labels of each line, each as: line number, score or "
        "probability, text, separated by tabs",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="write one line of JSON for each line, with all that the result has in Python; with "
        "--check one line with all that was found",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of sampling: the same texts at each run"
    )
    parser.add_argument(
        "--with-prompt", action="store_true", help="write the prompt before its continuation"
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=2048,
        metavar="N",
        help="tokens read by a batch, padding included (default %(default)s)",
    )
    parser.add_argument(
        "--read-ahead",
        type=int,
        default=1024,
        metavar="N",
        help="lines that are sorted by length together; 1 answers each line at once "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of a batch (default: every core, or one with several workers)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="batches at the same time (default %(default)s); for many lines on a CPU as many as "
        "it has cores",
    )
    parser.add_argument(
        "--provider",
        action="append",
        metavar="NAME",
        help="onnxruntime's execution provider, such as CUDAExecutionProvider; can be repeated",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no provider line")
    options = parser.parse_args(arguments)
    _check_together(parser, options)
    return options


def _check_together(parser, options):
    """Ends the command at options that do not go together."""
    if options.folder is None and not options.check:
        parser.error("the following arguments are required: folder")
    answering = [name for name in _TASKS if _is_given(options, name)]
    if options.check and answering:
        parser.error(f"--check answers no lines: leave out {', '.join(answering)}")
    if options.n_best is not None and options.n_best < 1:
        parser.error(f"--n-best must be at least 1, got {options.n_best}")
    if options.n_best is not None and options.json:
        parser.error("--json writes all hypotheses and labels: leave out --n-best")


def _is_given(options, name):
    value = getattr(options, name[2:].replace("-", "_"))
    return value is not None and value is not False  # 0 is a seed


def main(arguments=None):
    """The command line. Returns the exit status."""
    options = _parse(arguments)
    streams = {"input": sys.stdin, "output": sys.stdout}
    if options.check:
        del streams["input"]  # it reads none
    for name, stream in streams.items():
        if stream is None:
            tell(f"error: standard {name} is closed\n")
            return 3
    shown = not options.quiet and sys.stderr is not None and sys.stderr.isatty()
    size = os.fstat(sys.stdin.fileno()).st_size if "input" in streams else 0
    progress = Progress(size, shown)
    try:
        if options.check:
            named = {"threads": options.threads, "as_json": options.json}
            return check(options.folder, options.provider, **named)
        failed, done = _answer(options, sys.stdin.buffer, sys.stdout.buffer, progress)
    except OSError as error:
        abandon(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return 141
        progress.say(f"error: standard input or output failed: {error.strerror}")
        return 3
    except ValueError as error:
        progress.say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        progress.say("interrupted; what was written so far is complete")
        return 130
    progress.close()
    if failed:
        progress.say(f"{failed} lines were not {done}")
    return 1 if failed else 0


def _answer(options, source, target, progress):
    """Answers the lines of one binary file in another.

    Returns how many could not be answered, and what is said of one that could.
    """
    task = _checked_task(options)
    done = DONE.get(task, "answered")
    named = {"threads": options.threads, "workers": options.workers}
    with contextlib.redirect_stdout(sys.stderr):  # onnxruntime prints which library it lacks
        served = open_runner(options.folder, options.provider, **named)
    if not options.quiet:
        progress.say(f"running on {served.provider}")
    lines = progress.reading(read_lines(source))
    sizes = options.batch_tokens, options.read_ahead
    results = answers(served, lines, options.seed, *sizes)
    failed = 0
    for number, result in enumerate(results, 1):
        target.write(written(number, result, options))
        target.flush()
        progress.wrote_line()
        if result.error is not None:
            failed += 1
            progress.say(f"line {number} is not {done}: {result.error}")
    return failed, done


def _checked_task(options):
    """The task of the artefact; raises `ValueError` for options that it does not have."""
    task = read_task(options.folder)
    for option, tasks in _TASKS.items():
        if _is_given(options, option) and task not in tasks:
            raise ValueError(
                f"{option} goes with the tasks {', '.join(tasks)}; this artefact's is {task!r}"
            )
    return task
