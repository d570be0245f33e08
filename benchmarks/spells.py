"""Measures how evenly a machine runs: one thread per core repeatedly translates a line.

    python benchmarks/spells.py FOLDER LINE

On a virtual machine, a neighbour may slow the cores for seconds. Load averages and processor times
do not show this, and a busy service falls behind in such a spell. The script prints JSON: the
median and the slowest of the mean times per half second, relative to the fastest.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import statistics
import time

from keras_transformer.export.runtime import Translator

SPELL = 0.5  # seconds


def times(folder, line, seconds):
    """Returns the mean seconds of a translation in each half second."""
    translator = Translator(folder, threads=1, spinning=False)
    found, begun = collections.defaultdict(list), time.perf_counter()
    while (start := time.perf_counter() - begun) < seconds:
        translator.translate([line])
        found[start // SPELL].append(time.perf_counter() - begun - start)
    means = [statistics.fmean(some) for some in found.values()]
    return means[2:]  # without the first second


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("line")
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    count = os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        cores = pool.map(lambda _: times(args.folder, args.line, args.seconds), range(count))
        slower = [time / min(core) for core in cores for time in core]
    print(json.dumps({"median": statistics.median(slower), "slowest": max(slower)}))


if __name__ == "__main__":
    main()
