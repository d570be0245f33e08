"""Archives on Ray Data: 100,000 lines with killed processes, and speed beside `Translator`.

    python benchmarks/archive.py --artefact out/onnx --data DATA --work FOLDER \
        --output benchmarks/results/archive.json

The lines are sentences of Multi30k and newstest2014, drawn with repetition, in three gzip files.
The script measures, together or separately:

- kills: drivers and workers are killed (SIGKILL) at random times. The output is then compared with
  the input, line by line.
- speed: the command and `Translator(workers=2)` take turns in separate processes. Times include the
  start and the end. A run of one line shows the time of a start.
- costs: the speed of cutting input into parts, and the driver's time per part.

Processor time covers all processes of a run, found in /proc. Linux only.
"""

import argparse
import gzip
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import common

from keras_transformer.startup import SERVES

FILES = 3
PROBE_PARTS = 500
TICKS = os.sysconf("SC_CLK_TCK")
TRANSLATOR = """
import gzip, sys
from keras_transformer.export.runtime import Translator
translator = Translator(sys.argv[1], workers=2)
for path in sys.argv[3:]:
    with gzip.open(path) as file, gzip.open(sys.argv[2], "at") as out:
        for result in translator.n_best_stream(file, read_ahead=20000):
            out.write(f"{result.text}\\t{result.error}\\n")
"""


def write_input(folder, data, count):
    """Writes sentences to files; returns paths and sentences."""
    from keras_transformer.text.corpora import read_lines

    known = read_lines(data / "multi30k" / "train.en.gz") + common.newstest(data)
    lines = random.Random(0).choices(known, k=count)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index in range(FILES):
        part = lines[index * count // FILES : (index + 1) * count // FILES]
        paths.append(folder / f"in-{index}.txt.gz")
        with gzip.open(paths[-1], "wt", 6, "utf-8") as file:
            file.writelines(f"{line}\n" for line in part)
    return paths, lines


def command(artefact, paths, out, *options):
    arguments = ["-m", "keras_transformer.export.archive", artefact, *paths, out, *options]
    return [sys.executable, *map(str, arguments)]


def descendants(pid):
    """Returns a process and its descendants: dict from pid to command line and CPU ticks."""
    found, children = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = entry.joinpath("stat").read_text().rpartition(")")
                line = entry.joinpath("cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue  # the process has ended
            fields = rest.split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            found[int(entry.name)] = line, sum(map(int, fields[11:13]))
    below, left = {}, [pid]
    while left:
        one = left.pop()
        if one in found:
            below[one] = found[one]
        left += children.get(one, [])
    return below


def run(arguments):
    """Runs a command; returns the seconds and CPU seconds of all its processes."""
    begin, ticks = time.monotonic(), {}
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    # Skips the import of TensorFlow, which neither engine needs.
    process = subprocess.Popen(arguments, env={**os.environ, SERVES: "1"}, **options)
    while process.poll() is None:
        ticks |= {pid: used for pid, (_, used) in descendants(process.pid).items()}
        time.sleep(0.25)
    told = process.stderr.read().decode(errors="replace")
    if process.returncode:
        raise SystemExit(f"{arguments[1:4]} ended with {process.returncode}: {told[-2000:]}")
    return {"seconds": time.monotonic() - begin, "cpu_seconds": sum(ticks.values()) / TICKS}


def killed_run(arguments, kills, pause):
    """Kills and restarts a command until it finishes; counts kills and starts."""
    draw = random.Random(1)
    counts = {"driver": 0, "worker": 0, "starts": 0}
    done = False
    while not done:
        counts["starts"] += 1
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not done and process.poll() is None:
            until = time.monotonic() + draw.uniform(*pause)
            while time.monotonic() < until and process.poll() is None:
                time.sleep(0.1)
            if counts["driver"] + counts["worker"] >= kills:
                process.wait()
            if process.poll() is not None:
                break
            workers = [
                pid for pid, (line, _) in descendants(process.pid).items() if "MapWorker" in line
            ]
            if workers and draw.random() < 0.6:
                os.kill(draw.choice(workers), signal.SIGKILL)
                counts["worker"] += 1
            else:
                process.kill()
                process.wait()
                counts["driver"] += 1
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"the job ended with {process.returncode}")
        done = process.returncode == 0
    return counts


def check_rows(out, paths, lines):
    """Counts rows of the output, and missing, repeated and misplaced ones, which must be 0."""
    from pyarrow import parquet

    rows = []
    for path in sorted(out.glob("part-*.parquet")):
        rows += parquet.read_table(path, columns=["file", "line", "source"]).to_pylist()
    count = len(lines)
    bounds = [index * count // FILES for index in range(FILES + 1)]
    expected = [
        {"file": str(path), "line": number, "source": line}
        for path, first, after in zip(paths, bounds[:-1], bounds[1:], strict=True)
        for number, line in enumerate(lines[first:after], 1)
    ]
    places = {(row["file"], row["line"]) for row in rows}
    return {
        "rows": len(rows),
        "missing": len({(row["file"], row["line"]) for row in expected} - places),
        "twice": len(rows) - len(places),
        "out of place": sum(a != b for a, b in zip(rows, expected, strict=False)),
    }


def probe_driver(args):
    """Measures the driver's processor time per part, in a job of one-line parts."""
    small = args.work / "small.txt"
    small.write_text("A man .\n" * PROBE_PARTS, "utf-8")
    code = """
import json, sys, time
from keras_transformer.export.archive import cluster, run_archive
cluster.PARTS_TOGETHER = 1  # as for long parts
run = lambda path, out: run_archive(sys.argv[1], [path], out, part_lines=1, quiet=True)
import ray
ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
run(sys.argv[2], sys.argv[3])
begin = time.process_time()
run(sys.argv[2], sys.argv[4])
print(json.dumps(time.process_time() - begin))
"""
    outs = args.work / "probe-first", args.work / "probe-second"
    arguments = [sys.executable, "-c", code, args.artefact, small, *outs]
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1]) / PROBE_PARTS


def probe_cutting(paths, part_lines):
    """Measures lines per CPU second that are cut into parts."""
    from keras_transformer.export.archive.inputs import cut

    begin = time.process_time()
    lines = sum(cut(path, part_lines, "text")[0] for path in paths)
    return lines / (time.process_time() - begin)


def measure_kills(args, paths, lines):
    """Measures the job with kills, and checks its output."""
    out = args.work / "killed"
    begin = time.monotonic()
    options = "--with-source", "--quiet", "--part-lines", args.part_lines
    counts = killed_run(command(args.artefact, paths, out, *options), args.kills, args.pause)
    seconds = time.monotonic() - begin
    size = sum(path.stat().st_size for path in out.glob("part-*"))
    return {
        **counts,
        "seconds": seconds,
        "bytes a line": size / len(lines),
        **check_rows(out, paths, lines),
    }


def measure_speed(args, paths, lines):
    """Measures the command and `Translator` in turn, on all lines and on one (the start)."""
    one = args.work / "one.txt.gz"
    one.write_bytes(gzip.compress(b"A man .\n"))
    runs = {"archive": [], "translator": [], "archive, one line": [], "translator, one line": []}
    for number in range(args.rounds):
        for what, files in (("", paths), (", one line", [one])):
            out = args.work / f"speed-{number}{len(files)}"
            job = command(args.artefact, files, out, "--quiet", "--part-lines", args.part_lines)
            runs[f"archive{what}"].append(run(job))
            out = out.with_suffix(".gz")
            code = [sys.executable, "-c", TRANSLATOR, args.artefact, out, *files]
            runs[f"translator{what}"].append(run(list(map(str, code))))
        print({name: found[-1] for name, found in runs.items()}, flush=True)
    return {"rounds": args.rounds, **medians(runs)}


def measure_costs(args, paths, lines):
    """Measures the costs for the plan of a large job."""
    return {
        "lines cut a second": probe_cutting(paths, args.part_lines),
        "driver's seconds a part": probe_driver(args),
    }


MEASURES = {"kills": measure_kills, "speed": measure_speed, "costs": measure_costs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_arguments(parser)
    parser.add_argument("measures", nargs="*", help=f"some of {list(MEASURES)}; default: all")
    parser.add_argument("--artefact", type=Path, required=True, help="folder of a translator")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for all files")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--part-lines", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--pause", type=float, nargs=2, default=(20, 60), help="between kills, s")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    args.data, args.work = Path(args.data), args.work.resolve()
    args.artefact = args.artefact.resolve()
    head, report = common.head(args), {}
    head["versions"] |= common.versions("ray", "pyarrow")
    if args.output and args.output.exists():  # keeps earlier figures, and other machines
        report = json.loads(args.output.read_text("utf-8"))
    paths, lines = write_input(args.work / "in", args.data, args.lines)
    manifest = json.loads((args.artefact / "artefact.json").read_text("utf-8"))
    for name in args.measures or MEASURES:
        found = {
            **head,
            "search": manifest["search"]["class_name"],
            "lines": args.lines,
            "part_lines": args.part_lines,
            **MEASURES[name](args, paths, lines),
            "load": os.getloadavg()[2],
        }
        print({name: found}, flush=True)
        if args.output:
            processor = head["machine"]["processor"]
            report[name] = {**report.get(name, {}), processor: found}
            common.write(report, args.output)


def medians(runs):
    return {
        name: {kind: statistics.median(one[kind] for one in found) for kind in found[0]}
        for name, found in runs.items()
    }


if __name__ == "__main__":
    main()
