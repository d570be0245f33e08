"""Speed and memory of Whisper in both engines, each in a separate process; see `whisper.py`."""

import functools
import statistics
import wave

import bench
import numpy as np
from speech_columns import FASTER_WHISPER, WHISPER
from whisper_engines import PRECISIONS, WIDTHS, task_of

from keras_transformer.special_ids import BEGIN_ID

ENGINE = "whisper_engines:transcribe"
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


def engines(args, precision, width):
    """Returns a task for ours, ours as it was `--before`, and each library of faster-whisper."""
    task = task_of(args, precision, width)
    found = {WHISPER: task}
    if args.before and (args.before / f"{precision}-{width}").exists():
        earlier = {"work": str(args.before), "spin": -1, "exact": True}
        found[f"{WHISPER}, before"] = task | earlier
    return found | dict.fromkeys((FASTER_WHISPER, f"{FASTER_WHISPER}, MKL"), task)


def speed(args):
    """Measures real-time factor and memory of all engines, in turn, beside busy cores."""
    paths, rows = sorted(args.sounds.glob("*.wav")), []
    length = sum(map(seconds_of, paths))
    exported = [
        (precision, width)
        for precision in args.precisions
        for width in args.widths
        if (args.work / f"{precision}-{width}").exists()
    ]
    for precision, width in exported:
        with bench.engines(ENGINE, engines(args, precision, width), bench.SERVES) as opened:
            for busy in args.busy:
                with bench.busy_cores(busy, args.pin):
                    runs = bench.in_turn(opened, args.rounds, warm_up=0, paths=paths)
                for name, found in runs.items():
                    row = {"precision": precision, "beam width": width, "engine": name}
                    row |= {"busy": busy, **bench.medians(found)}
                    rows.append({**row, "times real time": length / row["seconds"]})
                    print(rows[-1], flush=True)
    return {"sound seconds": length, "rounds": args.rounds, "rows": rows}


def encoder(args):
    """Measures a window's encoder and first token, greedy, as a share of the matrix rate."""
    from keras_transformer.export.runtime import Transcriber

    rate, rows = bench.matrix_rate(args.threads), []
    for precision in PRECISIONS:
        path = args.work / f"{precision}-{WIDTHS[0]}"
        transcriber = Transcriber(path, threads=args.threads)
        session, config = transcriber.session, transcriber.manifest["search"]["config"]
        features = np.random.default_rng(0).normal(size=(1, 3000, 80)).astype(np.float32)
        start = np.array([[BEGIN_ID, config["languages"][0], config["no_times"]]], np.int32)
        inputs = {"features": features, "start_ids": start, "max_length": np.array([1], np.int32)}
        run = functools.partial(session.run, ["token_ids"], inputs)
        turns = bench.in_turn({"encoder": lambda run=run: bench.timed(run)[0]}, args.rounds)
        seconds = statistics.median(turns["encoder"])
        share = ENCODER_FLOPS / seconds / rate
        rows.append({"precision": precision, "seconds": seconds, "share of rate": share})
    return {"matrix GFLOP/s": rate / 1e9, "GFLOP": ENCODER_FLOPS / 1e9, "rows": rows}


def long(args):
    """Measures memory and time for recordings joined to two and to thirty minutes."""
    rows = []
    for minutes in (2, 30):
        task = task_of(args, "int8", 1)
        with bench.engines(ENGINE, {WHISPER: task}, bench.SERVES) as opened:
            found = opened[WHISPER](paths=[joined(args, minutes)])
        speed = 60 * minutes / found["seconds"]
        rows.append({"minutes": minutes, **found, "times real time": speed})
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


def seconds_of(path):
    with wave.open(str(path)) as file:
        return file.getnframes() / file.getframerate()
