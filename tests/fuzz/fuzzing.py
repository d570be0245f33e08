"""Parts that the fuzzers share: environment, arguments, forked processes and reports.

A script imports this module first, because it sets paths and the environment of TensorFlow.
"""

import argparse
import multiprocessing
import os
import pathlib
import sys

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")
os.environ.update(dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"), "1"))
ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "examples", "benchmarks")]


def parser(doc, counts=None, seeded=True):
    """Returns a parser with `--out`, and others that many fuzzers have.

    Args:
        doc: docstring of the script, whose first line is the description.
        counts: help of `--count`, whose default is 1000. Defaults to `None`: no such argument.
        seeded: whether to add `--seed`. Defaults to `True`.
    """
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    if counts:
        made.add_argument("--count", type=int, default=1000, help=counts)
    if seeded:
        made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", type=pathlib.Path, help="JSON file for table and failures")
    return made


def forked(work, *arguments, quiet=True):
    """Calls `work(*arguments, send)` in a forked process. Returns the process and its pipe."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run():
        if quiet:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
        work(*arguments, sender.send)

    process = context.Process(target=run, daemon=True)
    process.start()
    sender.close()
    return process, receiver


def write(path, **report):
    """Writes a report, with date, machine and versions, if there is a path."""
    import bench  # a folder on the path since this module was imported

    if path:
        bench.write({**bench.head(argparse.Namespace(threads=1)), **report}, path)
