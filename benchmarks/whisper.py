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

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import common
from whisper_engines import ENGINES, PLAIN, PRECISIONS, WIDTHS, open_engine
from whisper_sentences import SENTENCES
from whisper_speed import child, encoder, long, speed

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PACKAGES = ("onnxruntime", "ctranslate2", "faster-whisper", "av", "numpy")


def sound_items(args):
    """Writes the sounds as WAV files; returns dicts of set, language, reference and path."""
    folder, found = args.work / "sounds", []
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(args.data / "speech" / "fsdd-recordings.tar") as archive:
        for member in archive.getmembers():
            match = re.fullmatch(r"(?:.*/)?((\d)_\w+_([0-4])\.wav)", member.name)
            if match:
                path = folder / match[1]
                path.write_bytes(archive.extractfile(member).read())
                item = {"set": "digits", "language": "en", "text": WORDS[int(match[2])]}
                found.append({**item, "path": str(path)})
    for language, texts in SENTENCES.items():
        for number, text in enumerate(texts):
            path = folder / f"{language}_{number}.wav"
            if not path.exists():
                subprocess.run(["espeak-ng", "-v", language, "-w", path, text], check=True)
            item = {"set": "sentences", "language": language, "text": text}
            found.append({**item, "path": str(path)})
    found.sort(key=lambda item: item["path"])
    random.Random(0).shuffle(found)
    return found


def texts(args):
    """Runs both engines on all sounds, within the time limit, and compares."""
    path, done = args.work / "texts.jsonl", {}
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            done[row["path"], row["engine"], row["width"]] = row
    end, items = time.monotonic() + args.seconds, sound_items(args)
    engines = {
        (name, width): open_engine(name, args, "float32", width)
        for width in WIDTHS
        for name in ENGINES
    }
    with path.open("a", encoding="utf-8") as file:
        for item in items:
            for (name, width), run in engines.items():
                if (item["path"], name, width) in done or time.monotonic() > end:
                    continue
                options = {
                    **PLAIN,
                    "language": item["language"],
                    "word_timestamps": width > 1,
                }
                segments, _ = run(item["path"], **options)
                row = {
                    "path": item["path"],
                    "engine": name,
                    "width": width,
                    "segments": segments,
                }
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
    keys = [[(item["path"], name, width) for name in ENGINES] for item in items]
    pairs = [
        (item, *(done[key]["segments"] for key in both))
        for item, both in zip(items, keys, strict=True)
        if all(key in done for key in both)
    ]
    different, gaps, boundaries, equal = [], [], [], 0
    for item, ours, theirs in pairs:
        if [one["text"] for one in ours] == [one["text"] for one in theirs]:
            equal += 1
            for one, other in zip(ours, theirs, strict=True):
                boundaries += [abs(one[end] - other[end]) for end in ("start", "end")]
                gaps += [
                    max(abs(a[1] - b[1]), abs(a[2] - b[2]))
                    for a, b in zip(one["words"], other["words"], strict=True)
                ]
        else:
            both = [(_text(rows), rows[0]["score"] if rows else None) for rows in (ours, theirs)]
            different.append({"sound": Path(item["path"]).name, "ours": both[0], "theirs": both[1]})
    return {
        "set": part,
        "beam width": width,
        "sounds": len(pairs),
        "of": len(items),
        "equal texts": equal,
        "largest difference of segment times": max(boundaries, default=None),
        "words": len(gaps),
        "words within 0.1 s": sum(int(gap <= 0.1) for gap in gaps),
        "word error rate": [error_rate([(p[0], p[1 + n]) for p in pairs]) for n in range(2)],
        "differences": different,
    }


def _text(segments):
    return "".join(segment["text"] for segment in segments).strip()


def error_rate(pairs):
    """Returns the word error rate of pairs (item, segments), after normalization."""
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from support.scores.word_errors import word_error_rate

    found = [normalised(_text(segments), item["language"]) for item, segments in pairs]
    wanted = [normalised(item["text"], item["language"]) for item, _ in pairs]
    return word_error_rate(found, wanted) if pairs else None


def normalised(text, language):
    """Lowercases text, removes punctuation, and spells out numbers."""
    from num2words import num2words

    text = re.sub(r"\d+", lambda match: num2words(int(match[0]), lang=language), text)
    return " ".join(re.sub(r"[^\w\s]|_", " ", text.lower()).split())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("texts", "speed", "long", "encoder", "child"))
    parser.add_argument("--model", type=Path, required=True, help="CTranslate2 folder of Whisper")
    parser.add_argument("--work", type=Path, required=True, help="folder with the exports")
    parser.add_argument("--data", type=Path, default=os.environ.get("KERAS_TRANSFORMER_DATA"))
    parser.add_argument("--sounds", type=Path, help="folder of recordings")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit of texts")
    parser.add_argument("--engine", choices=ENGINES, help="for child")
    parser.add_argument("--precision", choices=PRECISIONS, help="for child")
    parser.add_argument("--width", type=int, choices=WIDTHS, help="for child")
    parser.add_argument("--spin", type=int, help="for child: microseconds of waiting")
    parser.add_argument("--exact", action="store_true", default=None, help="for child")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--widths", nargs="+", type=int, choices=WIDTHS, default=WIDTHS)
    parser.add_argument("--busy", type=int, nargs="+", default=[0], help="numbers of busy cores")
    parser.add_argument("--pin", action="store_true", help="each busy loop stays on one core")
    parser.add_argument("--before", type=Path, help="folder with exports of earlier code")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.part == "child":
        return child(args)
    found = {"texts": texts, "speed": speed, "long": long, "encoder": encoder}[args.part](args)
    report = {**common.head(args), "versions": common.versions(*PACKAGES), args.part: found}
    if args.output:
        common.write(report, args.output)
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
