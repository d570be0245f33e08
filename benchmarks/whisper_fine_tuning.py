"""Fine-tunes Whisper on spoken digits: word error rate before and after, in ONNX Runtime.

The data is FSDD (six speakers, 8 kHz). Recordings 0 to 4 of each digit and speaker are the official
test split, 5 to 9 are the held-out split, and the next ones are for training. The model is a
CTranslate2 folder, such as OpenAI's multilingual base model.

    python benchmarks/whisper_fine_tuning.py train --model MODEL --data DATA --export WORK/tuned
    python benchmarks/whisper_fine_tuning.py score --model MODEL --data DATA --export WORK/tuned \\
        --name tuned --split test --output benchmarks/results/whisper_fine_tuning.json

`train` writes an export for windows of `--seconds`. `--epochs 0` exports the published model.
`score` transcribes a split with `Transcriber`, language given, without fallback to other
temperatures, and adds a row to the report. Numbers in digits count as words. Punctuation and case
are ignored.
"""

import argparse
import json
import os
import re
import tarfile
import time
from pathlib import Path

import common

PACKAGES = ("tensorflow", "keras", "onnxruntime", "av", "numpy")
FIRST_TRAINING = 10  # number of the first training recording


def recordings(args, split):
    """Extracts the recordings of a split; returns paths and words."""
    from whisper import WORDS

    last = FIRST_TRAINING + args.per_digit
    numbers = {"test": range(5), "valid": range(5, 10), "train": range(FIRST_TRAINING, last)}[split]
    folder, found = args.export.parent / "digits", {}
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(args.data / "speech" / "fsdd-recordings.tar") as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            match = re.fullmatch(r"(?:.*/)?((\d)_\w+_(\d+)\.wav)", member.name)
            if match and int(match[3]) in numbers:
                path = folder / match[1]
                path.write_bytes(archive.extractfile(member).read())
                found[path] = WORDS[int(match[2])]
    return list(found), list(found.values())


def train(args):
    """Imports the model, trains it, and exports it."""
    import keras

    import keras_transformer as kt
    from keras_transformer import export

    keras.utils.set_random_seed(0)
    model, tokenizer = kt.importers.ctranslate2.load(args.model)
    settings = kt.importers.ctranslate2.read_settings(args.model)
    if args.kind == "decoder":
        model.encoder.trainable = False
    elif args.kind == "lora":
        model.enable_lora(rank=8)
    trained = sum(keras.ops.size(weight) for weight in model.trainable_weights)
    started, history = time.process_time(), {}
    if args.epochs:
        options = {"batch_size": args.batch_size, "seconds": args.seconds}
        data, valid = (
            kt.speech_batches(
                *recordings(args, split), tokenizer, **options, shuffle=split == "train"
            )
            for split in ("train", "valid")
        )
        model.compile(
            keras.optimizers.Adam(args.rate),
            loss=kt.SequenceCrossentropy(),
            metrics=[kt.TokenAccuracy(name="accuracy")],
        )
        history = model.fit(data, validation_data=valid, epochs=args.epochs, verbose=2).history
    report = {
        "digits": len(recordings(args, "train")[0]) if args.epochs else 0,
        **{name: getattr(args, name) for name in ("kind", "epochs", "batch_size", "rate")},
        "seconds of processor time": round(time.process_time() - started),
        "trained weights": int(trained),
        **{name: [round(float(x), 4) for x in values] for name, values in history.items()},
    }
    export.export_onnx(
        model,
        args.export,
        tokenizer,
        kt.importers.speech_search(settings, tokenizer, beam_width=1),
        precision=args.precision,
        max_source_length=round(100 * args.seconds),
        verbose=False,
    )
    common.write(report, args.export.parent / f"{args.export.name}.json")


def score(args):
    """Scores an export on a split; returns a row of the report."""
    from whisper import error_rate

    from keras_transformer.export.runtime import Transcriber

    paths, words = recordings(args, args.split)
    transcriber = Transcriber(args.export, threads=args.threads)
    pairs, started, wrong = [], time.process_time(), []
    for path, word in zip(paths, words, strict=True):
        segments = transcriber.transcribe(path, language="en", temperatures=(0.0,))
        pairs.append(({"text": word, "language": "en"}, [{"text": one.text} for one in segments]))
        if error_rate(pairs[-1:]):
            wrong.append([path.stem, "".join(one["text"] for one in pairs[-1][1])])
            print(*wrong[-1], flush=True)
    return {
        "window, s": transcriber.manifest["limits"]["source_length"] / 100,
        "precision": transcriber.manifest["precision"],
        "recordings": len(pairs),
        "word error rate": round(error_rate(pairs), 4),
        "recordings with an error": len(wrong),
        "processor ms of a recording": round(1000 * (time.process_time() - started) / len(pairs)),
        "errors": wrong[:20],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("train", "score"))
    parser.add_argument("--model", type=Path, required=True, help="CTranslate2 folder of Whisper")
    parser.add_argument("--data", type=Path, default=os.environ.get("KERAS_TRANSFORMER_DATA"))
    parser.add_argument("--export", type=Path, required=True, help="folder of the export")
    parser.add_argument("--kind", choices=("all", "decoder", "lora"), default="all")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--per-digit", type=int, default=5, help="per speaker; at most 40")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-5, help="learning rate of Adam")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--name", help="row name, for score")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.part == "train":
        return train(args)
    row = score(args)
    training = args.export.parent / f"{args.export.name}.json"
    report = json.loads(args.output.read_text("utf-8")) if args.output.exists() else {}
    if training.exists():
        row["training"] = json.loads(training.read_text("utf-8"))
    rows = {**report.get("rows", {}), f"{args.name}, {args.split}": row}
    report = {**common.head(args), "versions": common.versions(*PACKAGES), "rows": rows}
    common.write(report, args.output)


if __name__ == "__main__":
    main()
