"""The service on Ray Serve beside `Translator` on whole files: equality, speed, overload.

    python benchmarks/service.py --artefact en-pt=FOLDER --file LINES \
        --output benchmarks/results/service.json

Clients are those of `service_clients`, processes of their own on the same cores. The service and
`Translator`, fed with the whole file in a process of its own, take turns, each with the file
several times over, so that the start and the end of a run count little; CPU seconds are of all
processes of a service, and of the clients apart.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import common
import workers
from service_process import Service

CLIENTS = Path(__file__).with_name("service_clients.py")
# A process for each line would measure the starts of curl; and all together must fit the queue.
CURL_LINES = {1: 25, 16: 5, 128: 2}
# For the throughput: requests at a time, and lines of each.
LOADS = {
    "1 line, 128 at a time": (128, 1),
    "1 line, 384 at a time": (384, 1),
    "16 lines, 32 at a time": (32, 16),
}
KINDS = ("grpc", "http", "libretranslate", "curl")
WHOLE_FILE = """
import json, sys, time
from keras_transformer.export.runtime import Translator
folder, file, times, options = sys.argv[1:]
lines = open(file, encoding="utf-8").read().splitlines()
translator = Translator(folder, **json.loads(options))
translator.translate(lines[:20])
cpu, start = time.process_time(), time.perf_counter()
for _ in range(int(times)):
    answers = translator.translate(lines)
seconds = time.perf_counter() - start
print(json.dumps([seconds, time.process_time() - cpu, answers]))
"""


def whole_file(folder, file, times=1, **options):
    """Seconds, CPU seconds and translations of a file, in a process of its own."""
    command = [sys.executable, "-c", WHOLE_FILE, folder, file, str(times), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return json.loads(done.stdout.splitlines()[-1])


def client(service, kind, model, concurrency, file, *options):
    """What `service_clients` reports."""
    command = [sys.executable, CLIENTS, kind, service.port, model, concurrency, file, *options]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=900, env=os.environ
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout)


def percentile(times, share):
    times = sorted(times)
    return times[min(len(times) - 1, int(share * len(times)))]


def equality(service, args, model, expected):
    """Yields rows: for each client and concurrency how many answers differ from `Translator`'s."""
    rows = []
    for concurrency in (128, 16, 1):
        for kind in KINDS:
            lines = CURL_LINES[concurrency] if kind == "curl" else 1
            found = client(service, kind, model, concurrency, args.file, "--lines", lines)
            pairs = zip(found["answers"], expected, strict=True)
            row = {
                "client": kind,
                "concurrency": concurrency,
                "lines a request": lines,
                "differing": sum(ours != theirs for ours, theirs in pairs),
                "lines": len(expected),
                "seconds": found["seconds"],
                "p50 ms": 1e3 * percentile(found["times"], 0.5),
                "p95 ms": 1e3 * percentile(found["times"], 0.95),
            }
            print(row, flush=True)
            rows.append(row)
            yield rows


def throughput(service, args, model, folder):
    """Rounds in turn: the file through `Translator`, and through the service."""
    rounds = []
    for _ in range(args.rounds):
        row = {"load": os.getloadavg()[0]}
        seconds, cpu, _ = whole_file(folder, args.file, args.times, workers=os.cpu_count())
        row["translator"] = {"seconds": seconds, "cpu": cpu}
        for name, (concurrency, lines) in LOADS.items():
            before = service.cpu_seconds()
            options = ("--lines", lines, "--times", args.times)
            found = client(service, "grpc", model, concurrency, args.file, *options)
            cpu = service.cpu_seconds() - before
            row[name] = {"seconds": found["seconds"], "cpu": cpu, "clients": found["cpu"]}
        print(row, flush=True)
        rounds.append(row)
    for name in LOADS:
        for what in ("seconds", "cpu"):
            ratio = statistics.median(row["translator"][what] / row[name][what] for row in rounds)
            print(name, what, ratio)
    return rounds


def load(service, args, model, single_file, rate):
    """Times at half of a rate beside one request at a time; then three times the rate."""
    single = client(service, "grpc", model, 1, single_file)
    half = client(service, "grpc", model, "-", args.file, "--rate", rate / 2, "--seconds", 20)
    again = client(service, "grpc", model, 1, single_file)
    alone = single["times"] + again["times"]
    report = {
        "rate": rate,
        "single": {f"p{share}": 1e3 * percentile(alone, share / 100) for share in (50, 95)},
        "half": {f"p{share}": 1e3 * percentile(half["times"], share / 100) for share in (50, 95)},
        "half statuses": half["statuses"],
    }
    print(report, flush=True)
    full = client(service, "grpc", model, 128, args.file)
    memory = service.megabytes()
    over = client(
        service, "grpc", model, "-", args.file, "--rate", 3 * rate, "--seconds", args.overload
    )
    report["overload"] = {
        "seconds": args.overload,
        "statuses": over["statuses"],
        "megabytes before": memory,
        "megabytes after": service.megabytes(),
    }
    after = client(service, "grpc", model, 128, args.file)
    report["overload"]["lines/s before"] = len(full["answers"]) / full["seconds"]
    report["overload"]["lines/s after"] = len(after["answers"]) / after["seconds"]
    print(report["overload"], flush=True)
    return report


def tables(report):
    """The tables of a report: throughput, times under load, overload, equality."""
    return "\n\n".join(
        [
            _throughput_table(report["throughput"], report["lines"] * report.get("times", 1)),
            _load_table(report["under load"]),
            _equality_table(report.get("equality", [])),
        ]
    )


def _throughput_table(rounds, lines):
    heads = ["requests", "lines/s", "Translator's", "of `Translator`", "by processor time"]
    heads += ["and clients", "loads"]
    rows = []
    for name in LOADS:
        ratios = [
            statistics.median(ratio(row["translator"], row[name]) for row in rounds)
            for ratio in (_of_seconds, _of_cpu, _of_cpu_and_clients)
        ]
        speeds = [
            lines / statistics.median(row[part]["seconds"] for row in rounds)
            for part in (name, "translator")
        ]
        loads = ", ".join(f"{row['load']:.0f}" for row in rounds)
        numbers = [f"{speed:.1f}" for speed in speeds] + [f"{ratio:.2f}" for ratio in ratios]
        rows.append([name, *numbers, loads])
    return workers.table(heads, rows)


def _of_seconds(whole, service):
    return whole["seconds"] / service["seconds"]


def _of_cpu(whole, service):
    return whole["cpu"] / service["cpu"]


def _of_cpu_and_clients(whole, service):
    return whole["cpu"] / (service["cpu"] + service["clients"])


def _load_table(load):
    over = load["overload"]
    rows = [
        ["one request at a time", "", *(f"{value:.0f}" for value in load["single"].values()), ""],
        [
            "half of the full speed",
            f"{load['rate'] / 2:.0f}",
            *(f"{value:.0f}" for value in load["half"].values()),
            _statuses(load["half statuses"]),
        ],
        [
            f"three times the full speed, {over['seconds']:.0f} s",
            f"{3 * load['rate']:.0f}",
            "",
            "",
            _statuses(over["statuses"]),
        ],
    ]
    table = workers.table(["load", "requests/s", "p50 ms", "p95 ms", "answers"], rows)
    memory = ", ".join(
        f"{name} {over['megabytes before'][name]:.0f} MB before and "
        f"{over['megabytes after'][name]:.0f} MB after"
        for name in over["megabytes before"]
    )
    speed = [over[f"lines/s {when}"] for when in ("before", "after")]
    speeds = f"{speed[0]:.1f} lines/s before and {speed[1]:.1f} after"
    return f"{table}\n\nThe overload: {memory}; {speeds}."


def _statuses(counts):
    return ", ".join(
        f"{count:,} {name.removeprefix('StatusCode.')}" for name, count in sorted(counts.items())
    )


def _equality_table(rows):
    heads = ["client", "at a time", "lines a request", "differing", "lines"]
    return workers.table(heads, [[row[name] for name in _EQUALITY] for row in rows])


_EQUALITY = ("client", "concurrency", "lines a request", "differing", "lines")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artefact", required=True, help="NAME=FOLDER, such as en-pt=out/onnx")
    parser.add_argument("--file", type=Path, required=True, help="sentences, one a line")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=4, help="the file is sent, in a round")
    parser.add_argument("--overload", type=float, default=60)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    model, _, folder = args.artefact.partition("=")
    expected = whole_file(folder, args.file)[2]
    report = common.head(args)
    for name in ("ray", "grpcio", "tritonclient", "libretranslatepy"):
        report["versions"][name] = importlib.metadata.version(name)
    report |= {"artefact": Path(folder).name, "rounds": args.rounds, "load": []}
    report["lines"], report["times"] = len(expected), args.times
    single_file = args.file.with_name("single.txt")
    lines = args.file.read_text("utf-8").splitlines()
    single_file.write_text("".join(f"{line}\n" for line in lines[:100]), "utf-8")

    begun = time.perf_counter()
    with Service(args.artefact) as service:
        report["start seconds"] = time.perf_counter() - begun
        report["throughput"] = throughput(service, args, model, folder)
        keep(report, args)
        seconds = statistics.median(
            row["1 line, 128 at a time"]["seconds"] for row in report["throughput"]
        )
        rate = args.times * len(expected) / seconds
        report["under load"] = load(service, args, model, single_file, rate)
        keep(report, args)
        for report["equality"] in equality(service, args, model, expected):
            keep(report, args)


def keep(report, args):
    """Writes what was measured so far, and how busy the machine is."""
    report["load"].append(os.getloadavg()[0])
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
