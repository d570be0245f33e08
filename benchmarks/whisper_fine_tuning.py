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

import json
import time
from pathlib import Path

import bench
from whisper_sounds import digits, error_rate

PACKAGES = ("av",)
FIRST_TRAINING = 10  # number of the first training recording


def recordings(args, split):
    """Extracts the recordings of a split; returns paths and words."""
    last = FIRST_TRAINING + args.per_digit
    numbers = {"test": range(5), "valid": range(5, 10), "train": range(FIRST_TRAINING, last)}
    found = digits(args.data, args.export.parent / "digits", numbers[split])
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
    bench.write(report, args.export.parent / f"{args.export.name}.json")


def score(args):
    """Scores an export on a split; returns a row of the report."""
    from keras_transformer.export.runtime import Transcriber

    paths, words = recordings(args, args.split)
    transcriber = Transcriber(args.export, threads=args.threads)

    def transcribe():
        found = [transcriber.transcribe(path, language="en", temperatures=(0.0,)) for path in paths]
        return ["".join(one.text for one in segments) for segments in found]

    seconds, texts = bench.timed(transcribe, time.process_time)
    wrong = [
        [path.stem, text]
        for path, text, word in zip(paths, texts, words, strict=True)
        if error_rate([text], [word], ["en"])
    ]
    return {
        "window, s": transcriber.manifest["limits"]["source_length"] / 100,
        "precision": transcriber.manifest["precision"],
        "recordings": len(paths),
        "word error rate": round(error_rate(texts, words, ["en"] * len(paths)), 4),
        "recordings with an error": len(wrong),
        "processor ms of a recording": round(1000 * seconds / len(paths)),
        "errors": wrong[:20],
    }


def main():
    parser = bench.Parser(__doc__, "data", "model", threads=1)
    parser.add_argument("part", choices=("train", "score"))
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
    args = parser.parse_args()
    if args.part == "train":
        return train(args)
    row = score(args)
    training = args.export.parent / f"{args.export.name}.json"
    if training.exists():
        row["training"] = json.loads(training.read_text("utf-8"))
    rows = {**bench.earlier(args).get("rows", {}), f"{args.name}, {args.split}": row}
    bench.finish(args, "whisper-fine-tuning", {"rows": rows}, *PACKAGES)


if __name__ == "__main__":
    main()
