"""The engines of `whisper.py`, this package and faster-whisper, with results in one form."""

PRECISIONS, WIDTHS = ("float32", "int8"), (1, 5)
ENGINES = ("keras_transformer", "faster-whisper")
PLAIN = {"temperature": (0.0,)}  # no fallback: its samples are random


def open_engine(name, args, precision, width):
    """Returns a function from a path and options to segments (dicts) and language."""
    if name == "faster-whisper":
        import faster_whisper

        made = faster_whisper.WhisperModel(
            str(args.model),
            device="cpu",
            compute_type=precision,
            cpu_threads=args.threads,
        )

        def run(path, **options):
            segments, info = made.transcribe(path, beam_size=width, **options)
            return [_row(segment, "avg_logprob", "word") for segment in segments], info.language

        return run
    from keras_transformer.export.runtime import Transcriber

    transcriber = Transcriber(args.work / f"{precision}-{width}", threads=args.threads)

    def run(path, **options):
        if "temperature" in options:
            options["temperatures"] = options.pop("temperature")
        segments = transcriber.transcribe(path, **options)
        return [_row(one, "average_log_probability", "text") for one in segments], segments.language

    return run


def _row(segment, score, word):
    row = {name: getattr(segment, name) for name in ("start", "end", "text")}
    words = segment.words or ()
    row["words"] = [(getattr(one, word), one.start, one.end) for one in words]
    return {**row, "score": getattr(segment, score)}
