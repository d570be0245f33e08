"""The service beside `Translator` on whole files: equality, speed, overload.

    python benchmarks/service.py --artefact en-pt=FOLDER --file LINES \
        --output benchmarks/results/service.json

Clients are those of `service_clients`, processes of their own on the same cores. The service and
`Translator`, fed with the whole file in a process of its own, take turns, each with the file
several times over, so that the start and the end of a run count little; CPU seconds are of all
processes of a service, and of the clients apart. `service_rows` makes tables of it.
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
                "times": percentiles(found),
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


def half_load(service, args, model, folder, single_file):
    """Rounds in turn: how evenly the machine runs, then full speed, single requests, half speed."""
    rounds = []
    for _ in range(args.rounds):
        spells = [sys.executable, SPELLS, folder, args.file.read_text("utf-8").splitlines()[0]]
        spells = subprocess.run(spells, capture_output=True, check=True)
        full = client(service, "grpc", model, 128, args.file, "--times", args.times)
        rate = speed_of(full) / 2
        single = client(service, "grpc", model, 1, single_file)
        half = client(service, "grpc", model, "-", args.file, "--rate", rate, "--seconds", 20)
        row = {"rate": rate, "statuses": half["statuses"], "spells": json.loads(spells.stdout)}
        row |= {"single": percentiles(single), "half": percentiles(half)}
        print(row, flush=True)
        rounds.append(row)
    return rounds


def overload(service, args, model):
    """Three times the full speed, and the speed before and after."""
    speed = speed_of(client(service, "grpc", model, 128, args.file, "--times", args.times))
    options = ("--rate", 3 * speed, "--seconds", args.overload)
    memory = service.megabytes()
    over = client(service, "grpc", model, "-", args.file, *options)
    report = {
        "seconds": args.overload,
        "rate": 3 * speed,
        "statuses": over["statuses"],
        "megabytes before": memory,
        "megabytes after": service.megabytes(),
        "lines/s before": speed,
    }
    after = client(service, "grpc", model, 128, args.file, "--times", args.times)
    report["lines/s after"] = speed_of(after)
    print(report, flush=True)
    return report


def beside_ray(service, args, model):
    """Rounds in turn with 128 clients: this service, and one with a replica on Ray.

    There are three times as many rounds, half as long: the machine's own speed varies more than the
    two services differ.
    """
    begun = time.perf_counter()
    with Service(args.artefact, "--replicas", "1") as other:
        services = {"one process": service, "a replica on Ray": other}
        report = {"start seconds": time.perf_counter() - begun, "lines/s": [], "cpu": []}
        for _ in range(3 * args.rounds):
            speeds, seconds = {}, {}
            for name, one in services.items():
                before = one.cpu_seconds()
                found = client(one, "grpc", model, 128, args.file, "--times", args.times // 2)
                speeds[name] = speed_of(found)
                seconds[name] = (one.cpu_seconds() - before) / len(found["answers"])
            services = dict(reversed(services.items()))  # The next round begins with the other one.
            report["lines/s"].append(speeds)
            report["cpu"].append(seconds)
        report["megabytes"] = {name: one.megabytes()["all"] for name, one in services.items()}
    print(report, flush=True)
    return report


def speed_of(found):
    """Lines a second."""
    return len(found["answers"]) / found["seconds"]


def percentiles(found):
    """p50 and p95 in milliseconds."""
    return {f"p{share}": 1e3 * percentile(found["times"], share / 100) for share in (50, 95)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--artefact", required=True, help="NAME=FOLDER, such as en-pt=out/onnx")
    parser.add_argument("--file", type=Path, required=True, help="sentences, one a line")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--replicas", help="on Ray; without it the service is one process")
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
    # Of each length as many as there are in the file, and enough of them for a p95.
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
    """Writes what was measured so far, and how busy the machine is."""
    report["load"].append(os.getloadavg()[0])
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
