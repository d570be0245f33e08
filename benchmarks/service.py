"""The service beside `Translator` on whole files: equality, speed, overload.

    python benchmarks/service.py --artefact en-pt=FOLDER --file LINES \
        --output benchmarks/results/service.json

The clients of `service_clients` are separate processes on the same cores. The service takes turns
with `Translator`, which gets the whole file in a separate process. Both get the file several
times, so that the start and the end of a run count little. CPU seconds cover all processes of a
service; clients are counted separately.
"""

import os
import time
from pathlib import Path

import bench
from service_process import Service

# One line per process would measure the start of curl. All lines together must fit the queue.
CURL_LINES = {1: 25, 16: 5, 128: 2}
# For the throughput: requests at a time, and lines per request.
LOADS = {
    "1 line, 128 at a time": (128, 1),
    "1 line, 384 at a time": (384, 1),
    "16 lines, 32 at a time": (32, 16),
}
KINDS = ("http", "libretranslate", "curl")
PACKAGES = ("ray", "tritonclient", "libretranslatepy")


class Load:
    """The clients of one service, and the artefact that it serves.

    Args:
        args: with "artefact", "file", and the seconds of each part.
        service: a running `Service`.
    """

    def __init__(self, args, service):
        self.args, self.service = args, service
        self.model, _, self.folder = args.artefact.partition("=")

    def _call(self, function, **task):
        task = {"file": self.args.file, "folder": self.folder, "model": self.model, **task}
        task["port"] = self.service.port
        return bench.call(f"service_clients:{function}", task, bench.SERVES, timeout=900)

    def client(self, concurrency, lines=1, times=None, kind="http", **task):
        """Returns the figures of `service_clients.closed`, and CPU seconds of the service."""
        before = self.service.cpu_seconds()
        task |= {"concurrency": concurrency, "lines": lines, "times": times or self.args.times}
        found = self._call("closed", kind=kind, **task)
        speed = len(found["answers"]) / found["seconds"]
        return found | {"service": self.service.cpu_seconds() - before, "speed": speed}

    def steady(self, rate, seconds):
        """Returns the figures of `service_clients.steady`."""
        return self._call("steady", rate=rate, seconds=seconds)

    def translator(self, times, workers=1):
        """Returns the figures of `service_clients.whole_file`."""
        return self._call("whole_file", times=times, workers=workers)

    def spells(self):
        """Returns the figures of `service_clients.spells`."""
        return self._call("spells", seconds=self.args.seconds)


def percentiles(found):
    """Returns p50 and p95 in milliseconds."""
    times = sorted(found["times"])
    return {
        f"p{share}": 1e3 * times[min(len(times) - 1, share * len(times) // 100)]
        for share in (50, 95)
    }


def equality(load, args):
    """Counts answers that differ from `Translator`, by client and concurrency."""
    expected, rows = load.translator(times=1)["answers"], []
    for concurrency in (128, 16, 1):
        for kind in KINDS:
            lines = CURL_LINES[concurrency] if kind == "curl" else 1
            found = load.client(concurrency, lines, times=1, kind=kind)
            pairs = zip(found["answers"], expected, strict=True)
            row = {"client": kind, "concurrency": concurrency, "lines a request": lines}
            row |= {"lines": len(expected), "differing": sum(a != b for a, b in pairs)}
            rows.append(row | {"seconds": found["seconds"], "times": percentiles(found)})
            print(rows[-1], flush=True)
    return rows


def throughput(load, args):
    """Measures `Translator` and the service on the file, in turn."""
    rounds = []
    for _ in range(args.rounds):
        whole = load.translator(args.times, workers=os.cpu_count())
        row = {"load": os.getloadavg()[0]}
        row["translator"] = {name: whole[name] for name in ("seconds", "cpu")}
        for name, shape in LOADS.items():
            found = load.client(*shape)
            row[name] = {"seconds": found["seconds"], "cpu": found["service"]}
            row[name]["clients"] = found["cpu"]
        rounds.append(row)
        print(row, flush=True)
    return rounds


def half_load(load, args):
    """Measures rounds: evenness of the machine, full speed, single requests, half speed."""
    single_file, rounds = args.file.with_name("single.txt"), []
    # A third of the lines has the same mix of lengths, and is enough for a p95.
    lines = args.file.read_text("utf-8").splitlines(keepends=True)
    single_file.write_text("".join(lines[::3]), "utf-8")
    for _ in range(args.rounds):
        spells, rate = load.spells(), load.client(128)["speed"] / 2
        single = load.client(1, times=1, file=single_file)
        half = load.steady(rate, args.seconds)
        row = {"rate": rate, "statuses": half["statuses"], "spells": spells}
        rounds.append(row | {"single": percentiles(single), "half": percentiles(half)})
        print(rounds[-1], flush=True)
    return rounds


def overload(load, args):
    """Sends three times the full speed; measures the speed before and after."""
    speed, memory = load.client(128)["speed"], load.service.megabytes()
    over = load.steady(3 * speed, args.overload)
    return {
        "seconds": args.overload,
        "rate": 3 * speed,
        "statuses": over["statuses"],
        "megabytes before": memory,
        "megabytes after": load.service.megabytes(),
        "lines/s before": speed,
        "lines/s after": load.client(128)["speed"],
    }


def beside_ray(load, args):
    """Measures this service and one with a replica on Ray in turn, with 128 clients.

    There are three times as many rounds, half as long, because the machine's speed varies more than
    the two services differ.
    """
    begun = time.perf_counter()
    with Service(args.artefact, "--replicas", "1") as other:
        report = {"start seconds": time.perf_counter() - begun, "lines/s": [], "cpu": []}
        loads = {"one process": load, "a replica on Ray": Load(args, other)}
        for _ in range(3 * args.rounds):
            found = {
                name: one.client(128, times=max(1, args.times // 2)) for name, one in loads.items()
            }
            report["lines/s"].append({name: one["speed"] for name, one in found.items()})
            report["cpu"].append(
                {name: one["service"] / len(one["answers"]) for name, one in found.items()}
            )
            loads = dict(reversed(loads.items()))  # The next round begins with the other one.
        report["megabytes"] = {name: one.service.megabytes()["all"] for name, one in loads.items()}
    return report


PARTS = {
    "throughput": throughput,
    "half load": half_load,
    "overload": overload,
    "equality": equality,
    "beside Ray": beside_ray,
}


def main():
    parser = bench.Parser(__doc__, "rounds")
    parser.add_argument("--artefact", required=True, help="NAME=FOLDER, such as en-pt=out/onnx")
    parser.add_argument("--file", type=Path, required=True, help="sentences, one per line")
    parser.add_argument("--replicas", help="replicas on Ray; default: one process, no Ray")
    parser.add_argument("--times", type=int, default=4, help="repetitions of the file per round")
    parser.add_argument("--seconds", type=float, default=20, help="of evenness, and of half load")
    parser.add_argument("--overload", type=float, default=60, help="seconds of overload")
    args = parser.parse_args()
    report = {"artefact": Path(args.artefact).name, "rounds": args.rounds, "times": args.times}
    report |= {"lines": len(args.file.read_text("utf-8").splitlines()), "load": []}
    replicas = ["--replicas", args.replicas] if args.replicas else []
    begun = time.perf_counter()
    with Service(args.artefact, *replicas) as service:
        report["start seconds"] = time.perf_counter() - begun
        for name, measure in PARTS.items():
            if name == "beside Ray" and replicas:
                continue
            report[name] = measure(Load(args, service), args)
            report["load"].append(os.getloadavg()[0])
            bench.keep(args, report, *PACKAGES)
    bench.finish(args, "service", report, *PACKAGES)


if __name__ == "__main__":
    main()
