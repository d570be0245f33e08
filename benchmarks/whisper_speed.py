"""Speed and memory of Whisper in both engines, each in a separate process; see `whisper.py`."""

import collections
import json
import os
import statistics
import subprocess
import sys
import time
import wave
from pathlib import Path

import numpy as np
import workers
from serving_engines import use_sessions
from serving_processes import busy_cores, matrix_rate
from whisper_engines import ENGINES, PLAIN, PRECISIONS, WIDTHS, open_engine

from keras_transformer.special_ids import BEGIN_ID

SCRIPT = Path(__file__).with_name("whisper.py")
BACKENDS = {ENGINES[1]: "0", f"{ENGINES[1]}, MKL": "1"}  # values of CT2_USE_MKL
# A window in the base model: two convolutions, six blocks of four projections, attention and a
# network of 2048, then keys and values of six decoder blocks.
_FRAMES, _WIDTH, _NETWORK, _BLOCKS = 1500, 512, 2048, 6
ENCODER_FLOPS = (
    2
    * _FRAMES
    * (
        2 * 3 * 80 * _WIDTH
        + 3 * _WIDTH**2
        + _BLOCKS * (4 * _WIDTH**2 + 2 * _FRAMES * _WIDTH + 2 * _WIDTH * _NETWORK)
        + _BLOCKS * 2 * _WIDTH**2
    )
)


def child(args):
    """Transcribes lists of files from standard input, one per line; prints the times."""
    use_sessions(args.spin, args.exact)
    run = open_engine(args.engine, args, args.precision, args.width)
    print("ready", flush=True)
    for line in sys.stdin:
        start, clock, words = time.perf_counter(), time.process_time(), 0
        for path in json.loads(line):
            segments, _ = run(path, **PLAIN)
            words += sum(len(segment["text"].split()) for segment in segments)
        found = {"seconds": time.perf_counter() - start, "words": words}
        found["processor seconds"] = time.process_time() - clock
        found["peak MB"] = workers.peak_memory() / 1e6
        print(json.dumps(found), flush=True)


class Child:
    """An engine in a separate process."""

    def __init__(self, args, engine, precision, width, work=None, mkl="0", before=False):
        command = [sys.executable, SCRIPT, "child", "--engine", engine]
        command += ["--precision", precision, "--width", str(width)]
        command += ["--spin", "-1", "--exact"] * before
        command += [
            "--threads",
            str(args.threads),
            "--model",
            args.model,
            "--work",
            work or args.work,
        ]
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        serves = {**os.environ, "KERAS_TRANSFORMER_SERVES": "1"}  # imports no framework
        serves["CT2_USE_MKL"] = mkl
        self._process = subprocess.Popen(command, env=serves, **options)
        assert self._process.stdout.readline() == "ready\n"

    def run(self, paths):
        """Returns times and memory for these files."""
        self._process.stdin.write(json.dumps([str(path) for path in paths]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def stop(self):
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


def children(args, precision, width):
    """Starts the engines: ours, ours as it was `--before`, and each backend of faster-whisper."""
    settings = {ENGINES[0]: {}}
    if args.before and (args.before / f"{precision}-{width}").exists():
        settings[f"{ENGINES[0]}, before"] = {"work": args.before, "before": True}
    settings |= {name: {"mkl": mkl} for name, mkl in BACKENDS.items()}
    return {
        name: Child(args, name.split(",")[0], precision, width, **options)
        for name, options in settings.items()
    }


def speed(args):
    """Measures real-time factor and memory of all engines, in turn, beside busy cores."""
    paths, rows = sorted(args.sounds.glob("*.wav")), []
    length = sum(map(seconds_of, paths))
    for precision in args.precisions:
        for width in args.widths:
            if not (args.work / f"{precision}-{width}").exists():
                continue  # not exported
            engines = children(args, precision, width)
            for busy in args.busy:
                with busy_cores(busy, args.pin):
                    runs = in_turn(engines, paths, args.rounds)
                for name, found in runs.items():
                    row = {"precision": precision, "beam width": width, "engine": name}
                    row |= {"busy": busy}
                    row |= {key: statistics.median(r[key] for r in found) for key in found[0]}
                    rows.append({**row, "times real time": length / row["seconds"]})
                    print(rows[-1], flush=True)
            for one in engines.values():
                one.stop()
    return {"sound seconds": length, "rounds": args.rounds, "rows": rows}


def in_turn(engines, paths, rounds):
    """Runs each engine in each round; a backend that is much slower, in the first round only."""
    runs = collections.defaultdict(list)
    for number in range(rounds):
        for name, one in engines.items():
            if number and name in BACKENDS:
                fastest = min(runs[backend][0]["seconds"] for backend in BACKENDS)
                if runs[name][0]["seconds"] > 1.5 * fastest:
                    continue
            runs[name].append(one.run(paths))
    return runs


def encoder(args):
    """Measures a window's encoder and first token, greedy, as a share of the matrix rate."""
    from keras_transformer.export.runtime import Transcriber

    rate, rows = matrix_rate(args.threads), []
    for precision in PRECISIONS:
        path = args.work / f"{precision}-{WIDTHS[0]}"
        transcriber = Transcriber(path, threads=args.threads)
        session, config = transcriber.session, transcriber.manifest["search"]["config"]
        features = np.random.default_rng(0).normal(size=(1, 3000, 80)).astype(np.float32)
        start = np.array([[BEGIN_ID, config["languages"][0], config["no_times"]]], np.int32)
        inputs = {"features": features, "start_ids": start, "max_length": np.array([1], np.int32)}
        times = []
        for _ in range(1 + args.rounds):
            began = time.perf_counter()
            session.run(["token_ids"], inputs)
            times.append(time.perf_counter() - began)
        seconds = statistics.median(times[1:])
        share = ENCODER_FLOPS / seconds / rate
        rows.append({"precision": precision, "seconds": seconds, "share of rate": share})
    return {"matrix GFLOP/s": rate / 1e9, "GFLOP": ENCODER_FLOPS / 1e9, "rows": rows}


def seconds_of(path):
    with wave.open(str(path)) as file:
        return file.getnframes() / file.getframerate()


def long(args):
    """Measures memory and time for recordings joined to two and to thirty minutes."""
    rows = []
    for minutes in (2, 30):
        path = joined(args, minutes)
        one = Child(args, ENGINES[0], "int8", 1)
        found = one.run([path])
        one.stop()
        rows.append(
            {
                "minutes": minutes,
                **found,
                "times real time": 60 * minutes / found["seconds"],
            }
        )
        print(rows[-1], flush=True)
    return rows


def joined(args, minutes):
    """Writes the recordings, repeated to the length, at 16 kHz."""
    from keras_transformer.sound.samples import read_blocks

    sounds = [np.concatenate(list(read_blocks(path))) for path in sorted(args.sounds.glob("*.wav"))]
    count, path = minutes * 60 * 16_000, args.work / f"{minutes}_minutes.wav"
    samples = np.resize(np.concatenate(sounds), count)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path
