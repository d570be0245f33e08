"""The service beside `Translator` on whole files: equality, speed, overload.

    python benchmarks/service.py --artefact en-pt=FOLDER --file LINES \
        --output benchmarks/results/service.json

The clients of `service_clients` are separate processes on the same cores. The service takes turns
with `Translator`, which gets the whole file in a separate process. Both get the file several
times, so that the start and the end of a run count little. CPU seconds cover all processes of a
service; clients are counted separately. `service_rows` makes the tables.
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
from service_process import Service

CLIENTS = Path(__file__).with_name("service_clients.py")
SPELLS = Path(__file__).with_name("spells.py")
# One line per process would measure the start of curl. All lines together must fit the queue.
CURL_LINES = {1: 25, 16: 5, 128: 2}
# For the throughput: requests at a time, and lines per request.
LOADS = {
    "1 line, 128 at a time": (128, 1),
    "1 line, 384 at a time": (384, 1),
    "16 lines, 32 at a time": (32, 16),
}
KINDS = ("http", "libretranslate", "curl")
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
    """Returns seconds, CPU seconds and translations of a file in a separate process."""
    command = [sys.executable, "-c", WHOLE_FILE, folder, file, str(times), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return json.loads(done.stdout.splitlines()[-1])


def client(service, kind, model, concurrency, file, *options):
    """Returns the report of `service_clients`."""
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
    """Yields all rows so far: answers that differ from `Translator`, by client and concurrency."""
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
                "times": percentiles(found),
            }
            print(row, flush=True)
            rows.append(row)
            yield rows


def throughput(service, args, model, folder):
    """Measures `Translator` and the service on the file, in turn."""
    rounds = []
    for _ in range(args.rounds):
        row = {"load": os.getloadavg()[0]}
        seconds, cpu, _ = whole_file(folder, args.file, args.times, workers=os.cpu_count())
        row["translator"] = {"seconds": seconds, "cpu": cpu}
        for name, (concurrency, lines) in LOADS.items():
            before = service.cpu_seconds()
            options = ("--lines", lines, "--times", args.times)
            found = client(service, "http", model, concurrency, args.file, *options)
            cpu = service.cpu_seconds() - before
            row[name] = {"seconds": found["seconds"], "cpu": cpu, "clients": found["cpu"]}
        print(row, flush=True)
        rounds.append(row)
    for name in LOADS:
        for what in ("seconds", "cpu"):
            ratio = statistics.median(row["translator"][what] / row[name][what] for row in rounds)
            print(name, what, ratio)
    return rounds


def half_load(service, args, model, folder, single_file):
    """Measures rounds: evenness of the machine, full speed, single requests, half speed."""
    rounds = []
    for _ in range(args.rounds):
        spells = [sys.executable, SPELLS, folder, args.file.read_text("utf-8").splitlines()[0]]
        spells = subprocess.run(spells, capture_output=True, check=True)
        full = client(service, "http", model, 128, args.file, "--times", args.times)
        rate = speed_of(full) / 2
        single = client(service, "http", model, 1, single_file)
        half = client(service, "http", model, "-", args.file, "--rate", rate, "--seconds", 20)
        row = {"rate": rate, "statuses": half["statuses"], "spells": json.loads(spells.stdout)}
        row |= {"single": percentiles(single), "half": percentiles(half)}
        print(row, flush=True)
        rounds.append(row)
    return rounds


def overload(service, args, model):
    """Sends three times the full speed; measures the speed before and after."""
    speed = speed_of(client(service, "http", model, 128, args.file, "--times", args.times))
    options = ("--rate", 3 * speed, "--seconds", args.overload)
    memory = service.megabytes()
    over = client(service, "http", model, "-", args.file, *options)
    report = {
        "seconds": args.overload,
        "rate": 3 * speed,
        "statuses": over["statuses"],
        "megabytes before": memory,
        "megabytes after": service.megabytes(),
        "lines/s before": speed,
    }
    after = client(service, "http", model, 128, args.file, "--times", args.times)
    report["lines/s after"] = speed_of(after)
    print(report, flush=True)
    return report


def beside_ray(service, args, model):
    """Measures this service and one with a replica on Ray in turn, with 128 clients.

    There are three times as many rounds, half as long, because the machine's speed varies more than
    the two services differ.
    """
    begun = time.perf_counter()
    with Service(args.artefact, "--replicas", "1") as other:
        services = {"one process": service, "a replica on Ray": other}
        report = {"start seconds": time.perf_counter() - begun, "lines/s": [], "cpu": []}
        for _ in range(3 * args.rounds):
            speeds, seconds = {}, {}
            for name, one in services.items():
                before = one.cpu_seconds()
                found = client(one, "http", model, 128, args.file, "--times", args.times // 2)
                speeds[name] = speed_of(found)
                seconds[name] = (one.cpu_seconds() - before) / len(found["answers"])
            services = dict(reversed(services.items()))  # The next round begins with the other one.
            report["lines/s"].append(speeds)
            report["cpu"].append(seconds)
        report["megabytes"] = {name: one.megabytes()["all"] for name, one in services.items()}
    print(report, flush=True)
    return report


def speed_of(found):
    """Returns lines per second."""
    return len(found["answers"]) / found["seconds"]


def percentiles(found):
    """Returns p50 and p95 in milliseconds."""
    return {f"p{share}": 1e3 * percentile(found["times"], share / 100) for share in (50, 95)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artefact", required=True, help="NAME=FOLDER, such as en-pt=out/onnx")
    parser.add_argument("--file", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--replicas", help="replicas on Ray; default: one process, no Ray")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=4, help="repetitions of the file per round")
    parser.add_argument("--overload", type=float, default=60)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    model, _, folder = args.artefact.partition("=")
    expected = whole_file(folder, args.file)[2]
    report = common.head(args)
    for name in ("ray", "tritonclient", "libretranslatepy"):
        report["versions"][name] = importlib.metadata.version(name)
    report |= {"artefact": Path(folder).name, "rounds": args.rounds, "load": []}
    report["lines"], report["times"] = len(expected), args.times
    single_file = args.file.with_name("single.txt")
    lines = args.file.read_text("utf-8").splitlines()
    # A third of the lines has the same mix of lengths, and is enough for a p95.
    single_file.write_text("".join(f"{line}\n" for line in lines[::3]), "utf-8")

    replicas = ["--replicas", args.replicas] if args.replicas else []
    begun = time.perf_counter()
    with Service(args.artefact, *replicas) as service:
        report["start seconds"] = time.perf_counter() - begun
        report["throughput"] = throughput(service, args, model, folder)
        keep(report, args)
        report["half load"] = half_load(service, args, model, folder, single_file)
        keep(report, args)
        report["overload"] = overload(service, args, model)
        keep(report, args)
        for report["equality"] in equality(service, args, model, expected):
            keep(report, args)
        if not replicas:
            report["beside Ray"] = beside_ray(service, args, model)
            keep(report, args)


def keep(report, args):
    """Writes the report so far, with the load of the machine."""
    report["load"].append(os.getloadavg()[0])
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
