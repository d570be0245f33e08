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

import functools
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bench
import subjects
from service_process import family

FILES = 3
PROBE_PARTS = 500


def write_input(folder, data, count):
    """Writes sentences to files; returns paths and sentences."""
    known = subjects.captions(data, "train") + subjects.newstest(data)
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


def translate_files(task):
    """Translates files by `Translator`, as the command does; runs in a process."""
    from keras_transformer.export.runtime import Translator

    translator = Translator(task["artefact"], workers=2)
    for path in task["paths"]:
        with gzip.open(path) as file, gzip.open(task["out"], "at") as out:
            for result in translator.n_best_stream(file, read_ahead=20_000):
                out.write(f"{result.text}\t{result.error}\n")
    return {}


def run(arguments):
    """Runs a command; returns the seconds and CPU seconds of all its processes."""
    begin, cpu = time.monotonic(), {}
    # `SERVES` skips the import of TensorFlow, which neither engine needs.
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(arguments, env=os.environ | bench.SERVES, **pipes)
    while process.poll() is None:
        cpu |= {pid: seconds for pid, (_, seconds) in family(process.pid).items()}
        time.sleep(0.25)
    told = process.stderr.read().decode(errors="replace")
    if process.returncode:
        raise SystemExit(f"{arguments[1:4]} ended with {process.returncode}: {told[-2000:]}")
    return {"seconds": time.monotonic() - begin, "cpu_seconds": sum(cpu.values())}


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
            workers = [pid for pid, (line, _) in family(process.pid).items() if "MapWorker" in line]
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


def driver_seconds(task):
    """Returns the driver's processor seconds of a job of one-line parts, after one to warm up."""
    import ray

    from keras_transformer.export.archive import plan, run_archive

    plan.PARTS_TOGETHER = 1  # as for long parts
    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for out in task["outs"]:
        job = functools.partial(
            run_archive, task["artefact"], [task["file"]], out, part_lines=1, quiet=True
        )
        seconds, _ = bench.timed(job, time.process_time)
    return seconds


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

    def archive(files):
        out = Path(tempfile.mkdtemp(dir=args.work), "out")
        return run(command(args.artefact, files, out, "--quiet", "--part-lines", args.part_lines))

    def translator(files):
        out = Path(tempfile.mkdtemp(dir=args.work), "out.gz")
        task = {"artefact": args.artefact, "paths": [*map(str, files)], "out": out}
        return run(bench.command("archive:translate_files", task))

    turns = {
        f"{name}{what}": functools.partial(measure, files)
        for what, files in (("", paths), (", one line", [one]))
        for name, measure in (("archive", archive), ("translator", translator))
    }
    found = bench.in_turn(turns, args.rounds, warm_up=0)
    return {"rounds": args.rounds} | {name: bench.medians(rows) for name, rows in found.items()}


def measure_costs(args, paths, lines):
    """Measures the costs for the plan of a large job: cutting input, and the driver's time."""
    from keras_transformer.export.archive.inputs import cut

    seconds, counts = bench.timed(
        lambda: [cut(path, args.part_lines, "text")[0] for path in paths], time.process_time
    )
    small = args.work / "small.txt"
    small.write_text("A man .\n" * PROBE_PARTS, "utf-8")
    task = {"artefact": args.artefact, "file": small}
    task["outs"] = [str(args.work / name) for name in ("probe-first", "probe-second")]
    driver = bench.call("archive:driver_seconds", task, bench.SERVES)
    return {
        "lines cut a second": sum(counts) / seconds,
        "driver's seconds a part": driver / PROBE_PARTS,
    }


MEASURES = {"kills": measure_kills, "speed": measure_speed, "costs": measure_costs}


def main():
    parser = bench.Parser(__doc__, "data", "work", "rounds", rounds=1)
    parser.add_argument("measures", nargs="*", help=f"some of {list(MEASURES)}; default: all")
    parser.add_argument("--artefact", type=Path, required=True, help="folder of a translator")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--part-lines", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--pause", type=float, nargs=2, default=(20, 60), help="between kills, s")
    args = parser.parse_args()
    args.work, args.artefact = args.work.resolve(), args.artefact.resolve()
    head, report = bench.head(args, "ray", "pyarrow"), bench.earlier(args)  # of other machines
    paths, lines = write_input(args.work / "in", args.data, args.lines)
    manifest = json.loads((args.artefact / "artefact.json").read_text("utf-8"))
    head |= {"search": manifest["search"]["class_name"], "lines": args.lines}
    head |= {"part_lines": args.part_lines}
    for name in args.measures or MEASURES:
        found = {**head, **MEASURES[name](args, paths, lines), "load": os.getloadavg()[2]}
        print({name: found}, flush=True)
        report.setdefault(name, {})[head["machine"]["processor"]] = found
        if args.output:
            bench.write(report, args.output)


if __name__ == "__main__":
    main()
