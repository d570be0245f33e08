"""The command line of the runtime: lines in, lines out, as a stream, progress on stderr.

It is written with argparse: a library for command lines would be one more package to install where
models are served.
"""

import argparse
import collections
import os
import re
import sys
import time

from keras_transformer.export.runtime.translator import Translator


class _Progress:
    """A line on stderr with lines done, their rate and, for a file, the share and the time left."""

    def __init__(self, total_bytes, shown):
        self._total, self._shown = total_bytes, shown
        self._waiting = collections.deque()  # bytes of each line that was read and not yet written
        self._bytes = self._lines = 0
        self._start = self._last = time.monotonic()

    def reading(self, lines):
        for line in lines:
            self._waiting.append(len(line))
            yield line

    def wrote_line(self):
        self._bytes += self._waiting.popleft()
        self._lines += 1
        now = time.monotonic()
        if self._shown and now - self._last > 0.2:
            self._last = now
            self._draw(now - self._start)

    def _draw(self, seconds):
        text = f"{self._lines:,} lines, {self._lines / seconds:,.1f} lines/s"
        if self._total:
            share = min(1.0, self._bytes / self._total)
            left = int(seconds * (1 - share) / share)
            bar = ("#" * int(20 * share)).ljust(20, ".")
            text = f"[{bar}] {share:4.0%}, {text}, {left // 60}:{left % 60:02d} left"
        _tell(f"\r\033[K{text}")

    def say(self, text):
        """Prints a line of its own, above the bar."""
        _tell(("\r\033[K" if self._shown else "") + text + "\n")

    def close(self):
        if self._shown:
            self._draw(max(time.monotonic() - self._start, 1e-9))
            _tell("\n")


def _tell(text):
    """Writes to standard error; where that is closed or full, translations go on without."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            _abandon(sys.stderr)


def _abandon(stream):
    """Points a stream that failed to nowhere: Python flushes it at exit, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m keras_transformer.export.runtime",
        description="Translates standard input, line by line, to standard output.",
        epilog="A line that cannot be translated gives an empty line (none with --n-best), and "
        "its number and the reason on standard error. Exit status: 0 every line was translated; "
        "1 some were not; 2 wrong arguments or a bad artefact; 3 standard input or output is "
        "closed or failed, as on a full disk; 130 interrupted; 141 the reader of the output left.",
    )
    parser.add_argument("folder", help="what export_onnx wrote")
    parser.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help="write up to N hypotheses of each line, each as: line number, score, text, "
        "separated by tabs",
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=2048,
        metavar="N",
        help="source tokens of a batch, padding included (default %(default)s)",
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
    if options.n_best is not None and options.n_best < 1:
        parser.error(f"--n-best must be at least 1, got {options.n_best}")
    return options


def _output(number, translation, n_best):
    """What is written for one line of input, bytes."""
    if n_best is None:
        rows = [translation.text]
    else:
        rows = [
            f"{number}\t{score:.4f}\t{text}"
            for text, score in zip(translation.texts[:n_best], translation.scores, strict=False)
        ]
    # A model that knows bytes can write a newline, which would shift all the lines after it.
    return "".join(re.sub(r"[\r\n]+", " ", row) + "\n" for row in rows).encode("utf-8")


def main(arguments=None):
    """The command line. Returns the exit status."""
    options = _parse(arguments)
    for name, stream in {"input": sys.stdin, "output": sys.stdout}.items():
        if stream is None:
            _tell(f"error: standard {name} is closed\n")
            return 3
    source, target = sys.stdin.buffer, sys.stdout.buffer
    shown = not options.quiet and sys.stderr is not None and sys.stderr.isatty()
    progress = _Progress(os.fstat(source.fileno()).st_size, shown)
    try:
        failed = _translate(options, source, target, progress)
    except OSError as error:
        _abandon(sys.stdout)
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
        progress.say(f"{failed} lines were not translated")
    return 1 if failed else 0


def _translate(options, source, target, progress):
    """Translates the lines of one binary file to another; how many could not be translated."""
    translator = Translator(
        options.folder, options.provider, threads=options.threads, workers=options.workers
    )
    if not options.quiet:
        progress.say(f"running on {translator.provider}")
    results = translator.n_best_stream(
        progress.reading(source), options.batch_tokens, options.read_ahead
    )
    failed = 0
    for number, translation in enumerate(results, 1):
        target.write(_output(number, translation, options.n_best))
        target.flush()
        progress.wrote_line()
        if translation.error is not None:
            failed += 1
            progress.say(f"line {number} is not translated: {translation.error}")
    return failed
