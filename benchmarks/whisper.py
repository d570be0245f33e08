"""Whisper as one ONNX file beside faster-whisper, same weights: texts, times, speed and memory.

The model is a CTranslate2 folder, such as OpenAI's multilingual base model. First write its exports
into the folder `--work`:

    python -m keras_transformer.importers ctranslate2 MODEL WORK/float32-1 --export onnx
    python -m keras_transformer.importers ctranslate2 MODEL WORK/float32-5 --export onnx \\
        --beam-width 5
    (and WORK/int8-1, WORK/int8-5 with --precision int8)

    python benchmarks/whisper.py texts --model MODEL --data DATA --sounds FOLDER --work WORK \\
        --output benchmarks/results/whisper_texts.json
    python benchmarks/whisper.py speed ... --output benchmarks/results/whisper.json
    python benchmarks/whisper.py long ... --output benchmarks/results/whisper_long.json
    python benchmarks/whisper.py encoder ... --output benchmarks/results/whisper_encoder.json

- texts: the test digits of FSDD (8 kHz, one word each) and sentences that espeak-ng speaks in ten
  languages, with the language given, in float32 without fallback to other temperatures. With beam
  width 5, words get times, too. WORK keeps each text, so that a stopped run can continue;
  `--seconds` limits a run. The order is random, so a part is a sample.
- speed: the recordings of `--sounds` (*.wav), language detected, without fallback, one after the
  other. Engines take turns in separate processes. Figures are medians of `--rounds`. faster-whisper
  runs with each library for products (`CT2_USE_MKL`), and the faster one counts. `--busy 0 1` also
  measures beside an endless loop in a separate process. `--before FOLDER` holds exports of earlier
  code, which run with ONNX Runtime's default time of waiting.
- long: these recordings joined to two and to thirty minutes, int8, greedy.
- encoder: the time of a window's encoder and first token, and its share of float32's matrix rate (a
  product of two large matrices in NumPy).
"""

import json
import random
import time
from pathlib import Path

import bench
from speech_columns import FASTER_WHISPER, WHISPER
from whisper_engines import ENGINES, PLAIN, PRECISIONS, WIDTHS, task_of
from whisper_sounds import digits, error_rate, spoken
from whisper_speed import encoder, long, speed

PACKAGES = ("onnxruntime", "ctranslate2", "faster-whisper", "av", "numpy")


def sound_items(args):
    """Writes the sounds as WAV files; returns dicts of set, language, reference and path."""
    folder = args.work / "sounds"
    words = digits(args.data, folder, range(5))
    found = {path: ("digits", "en", word) for path, word in words.items()}
    found |= {path: ("sentences", *pair) for path, pair in spoken(folder).items()}
    items = [
        {"path": str(path), "set": part, "language": language, "text": text}
        for path, (part, language, text) in sorted(found.items())
    ]
    random.Random(0).shuffle(items)
    return items


def texts(args):
    """Runs both engines on all sounds, within the time limit, and compares."""
    path, done = args.work / "texts.jsonl", {}
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            done[row["path"], row["engine"], row["width"]] = row
    end, items = time.monotonic() + args.seconds, sound_items(args)
    engines = {
        (name, width): ENGINES[name](task_of(args, "float32", width))
        for width in WIDTHS
        for name in (WHISPER, FASTER_WHISPER)
    }
    with path.open("a", encoding="utf-8") as file:
        for item in items:
            for (name, width), run in engines.items():
                if (item["path"], name, width) in done or time.monotonic() > end:
                    continue
                options = {"language": item["language"], "word_timestamps": width > 1}
                segments = run(item["path"], **PLAIN, **options)
                row = {"path": item["path"], "engine": name, "width": width, "segments": segments}
                done[item["path"], name, width] = row
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
    return [
        compared(part, width, [item for item in items if item["set"] == part], done)
        for part in ("digits", "sentences")
        for width in WIDTHS
    ]


def compared(part, width, items, done):
    """Makes one row of the report: equal texts and times, differences, error rates."""
    names = (WHISPER, FASTER_WHISPER)
    finished = [
        item for item in items if all((item["path"], name, width) in done for name in names)
    ]
    sides = [[done[item["path"], name, width]["segments"] for item in finished] for name in names]
    different, gaps, boundaries = [], [], []
    for item, ours, theirs in zip(finished, *sides, strict=True):
        if [one["text"] for one in ours] == [one["text"] for one in theirs]:
            for one, other in zip(ours, theirs, strict=True):
                boundaries += [abs(one[end] - other[end]) for end in ("start", "end")]
                gaps += [
                    max(abs(a[1] - b[1]), abs(a[2] - b[2]))
                    for a, b in zip(one["words"], other["words"], strict=True)
                ]
        else:
            both = [(text_of(rows), rows[0]["score"] if rows else None) for rows in (ours, theirs)]
            different.append({"sound": Path(item["path"]).name, "ours": both[0], "theirs": both[1]})
    wanted, languages = ([item[key] for item in finished] for key in ("text", "language"))
    return {
        "set": part,
        "beam width": width,
        "sounds": len(finished),
        "of": len(items),
        "equal texts": len(finished) - len(different),
        "largest difference of segment times": max(boundaries, default=None),
        "words": len(gaps),
        "words within 0.1 s": sum(gap <= 0.1 for gap in gaps),
        "word error rate": [
            error_rate([text_of(segments) for segments in side], wanted, languages)
            for side in sides
        ],
        "differences": different,
    }


def text_of(segments):
    return "".join(segment["text"] for segment in segments).strip()


PARTS = {"texts": texts, "speed": speed, "long": long, "encoder": encoder}


def main():
    parser = bench.Parser(__doc__, "data?", "model", "work", "rounds", "busy", threads=2)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--sounds", type=Path, help="folder of recordings")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit of texts")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--widths", nargs="+", type=int, choices=WIDTHS, default=WIDTHS)
    parser.add_argument("--pin", action="store_true", help="each busy loop stays on one core")
    parser.add_argument("--before", type=Path, help="folder with exports of earlier code")
    args = parser.parse_args()
    found = {args.part: PARTS[args.part](args)}
    bench.finish(args, f"whisper-{args.part}", found, *PACKAGES)


if __name__ == "__main__":
    main()
