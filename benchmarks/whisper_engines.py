"""The engines of `whisper.py`, this package and faster-whisper, with results in one form."""

import time
from pathlib import Path

import bench
from speech_columns import FASTER_WHISPER, WHISPER

PRECISIONS, WIDTHS = ("float32", "int8"), (1, 5)
PLAIN = {"temperature": (0.0,)}  # no fallback: its samples are random


def faster_whisper(task):
    """Opens the original folder; returns a function from a path and options to segments."""
    import faster_whisper

    model = faster_whisper.WhisperModel(
        task["model"],
        device="cpu",
        compute_type=task["precision"],
        cpu_threads=task["threads"],
    )

    def run(path, **options):
        segments, _ = model.transcribe(path, beam_size=task["width"], **options)
        return [row(segment, "avg_logprob", "word") for segment in segments]

    return run


def ours(task):
    """Opens our export; returns a function from a path and options to segments."""
    from serving_engines import use_sessions

    from keras_transformer.export.runtime import Transcriber

    use_sessions(task.get("spin"), task.get("exact"))
    folder = Path(task["work"], f"{task['precision']}-{task['width']}")
    transcriber = Transcriber(folder, threads=task["threads"])

    def run(path, temperature, **options):
        segments = transcriber.transcribe(path, temperatures=tuple(temperature), **options)
        return [row(segment, "average_log_probability", "text") for segment in segments]

    return run


def row(segment, score, word):
    """Returns a segment as a dict; the attributes of score and word differ between engines."""
    words = [(getattr(one, word), one.start, one.end) for one in segment.words or ()]
    found = {name: getattr(segment, name) for name in ("start", "end", "text")}
    return found | {"words": words, "score": getattr(segment, score)}


ENGINES = {WHISPER: ours, FASTER_WHISPER: faster_whisper}


def task_of(args, precision, width, **more):
    """Returns the values that all engines need, for a task or for `ENGINES`."""
    shared = {"model": str(args.model), "work": str(args.work), "threads": args.threads}
    return {**shared, "precision": precision, "width": width, **more}


def transcribe(task):
    """Opens an engine for a `bench.Worker`; a round transcribes paths one after the other."""
    run = ENGINES[task["engine"].partition(",")[0]](task)

    def turn(paths):
        start, clock = time.perf_counter(), time.process_time()
        segments = [segment for path in paths for segment in run(path, **PLAIN)]
        return {
            "seconds": time.perf_counter() - start,
            "words": sum(len(segment["text"].split()) for segment in segments),
            "processor seconds": time.process_time() - clock,
            "peak MB": bench.memory()["peak_mb"] * 2**20 / 1e6,
        }

    return {}, turn
