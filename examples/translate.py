"""From two text files to a translator: tokenizer, training, search, BLEU.

    python examples/translate.py                                     # number words: no files
    python examples/translate.py --data DIR --source en --target de  # train.en, train.de, ...

Trains under `tf.distribute.MirroredStrategy` (every GPU, or logical CPUs with `--replicas`). Then
averages checkpoints (section 6.1), chooses between averages and length penalties by BLEU on the
validation set, and measures on the test sets. Leaves in `--output`: model.keras, tokenizer.model,
metrics.json, learning_curve.png, attention.png, and the epochs' checkpoints. Started again with
the same arguments, a run that was stopped or killed goes on.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import platform
import random
import shlex
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import sacrebleu
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import plots
from keras_transformer.data import corpora
from keras_transformer.training.callbacks import translate

tf.get_logger().setLevel("ERROR")  # each search is a graph of its own, which is meant

# Shape and recipe of each size. "numbers" is for number words; "tiny" is the model of the Multi30k
# results in the README; "base" and "big" are the paper's (sections 5.3, 5.4, 6.1 and Table 3).
# `average`: how many checkpoints an average usually takes; others are tried, too.
# `anneal`: after the warm-up, the rate falls to zero along a cosine that ends with the last epoch.
# fmt: off
PRESETS = {
    "numbers": dict(
        model=dict(num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.1),
        rate=dict(peak=0.005, warmup_steps=300),
        tokens_per_batch=4096, vocab_size=500, epochs=20, average=6),
    "tiny": dict(
        model=dict(num_layers=4, d_model=128, num_heads=4, d_ff=256, dropout=0.3),
        rate=dict(peak=0.0025, warmup_steps=1500, anneal=True),
        tokens_per_batch=4096, vocab_size=5000, epochs=85, average=10),
    "base": dict(
        model=dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout=0.1),
        rate=dict(d_model=512, warmup_steps=4000),
        tokens_per_batch=25000, vocab_size=32000, epochs=20, average=5),
    "big": dict(
        model=dict(num_layers=6, d_model=1024, num_heads=16, d_ff=4096, dropout=0.3),
        rate=dict(d_model=1024, warmup_steps=4000),
        tokens_per_batch=25000, vocab_size=32000, epochs=20, average=20),
}
# fmt: on


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of parallel files (plain or .gz), or a corpus to "
                        f"fetch: {', '.join(corpora.CORPORA)}; default: number words")  # fmt: skip
    parser.add_argument("--source", default="en", help="ending of the source files' names")
    parser.add_argument("--target", default="de", help="ending of the target files' names")
    parser.add_argument("--train", default="train", help="name of the training files")
    parser.add_argument("--valid", help="of the validation files; default: valid, val or dev")
    parser.add_argument("--test", nargs="*", help="of the test files; default: all test*")
    parser.add_argument("--limit", type=int, help="use the first LIMIT pairs of each set only")
    parser.add_argument("--undo-bpe", action="store_true", help="join words cut by '@@ '")
    parser.add_argument("--bleu-tokenize", choices=sacrebleu.metrics.BLEU.TOKENIZERS,
                        help="default: 13a, or char for number words")  # fmt: skip
    parser.add_argument("--preset", choices=PRESETS, help="default: tiny; numbers without --data")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--tokens-per-batch", type=int)
    parser.add_argument("--sampling-alpha", type=float, help="subword sampling while training")
    parser.add_argument("--replicas", type=int, help="default: every GPU, or one CPU")
    parser.add_argument("--dtype", default="float32", help="or mixed_bfloat16, mixed_float16")
    parser.add_argument("--beam-width", type=int, default=5)
    parser.add_argument("--length-penalty", type=float, nargs="+", default=[0.6, 1.0, 1.4],
                        help="one, or several to choose from")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("translator"))
    parser.add_argument("--evaluate", action="store_true", help="use what is there, do not train")
    args = parser.parse_args(argv)
    args.preset = args.preset or ("tiny" if args.data else "numbers")
    for name, number in vars(args).items():
        if type(number) is int and number < (least := 0 if name == "seed" else 1):
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {number}")
        if name in PRESETS[args.preset] and number is None:
            setattr(args, name, PRESETS[args.preset][name])
    args.bleu_tokenize = args.bleu_tokenize or ("13a" if args.data else "char")
    return args


# --- text ---


def number_words(args):
    """Sets of numbers up to a million, none of them in two: training, validation, {"test"}."""
    from num2words import CONVERTER_CLASSES, num2words

    languages = args.source, args.target
    if not CONVERTER_CLASSES.keys() >= set(languages):
        raise ValueError(
            f"num2words has {sorted(CONVERTER_CLASSES)}, got {' and '.join(languages)}."
        )
    draw = random.Random(0)
    numbers = [*range(1000), *draw.sample(range(1000, 1_000_000), 19_000)]
    draw.shuffle(numbers)
    valid, test, train = (
        [[num2words(n, lang=language) for n in chosen[: args.limit]] for language in languages]
        for chosen in (numbers[:500], numbers[500:1000], numbers[1000:])
    )
    return train, valid, {"test": test}


def read_files(args):
    """Sets of lines from a folder or a known corpus: training, validation, {name: test}."""
    folder = Path(args.data)
    if not folder.is_dir():
        if args.data not in corpora.CORPORA:
            raise ValueError(f"--data {folder} is no folder, nor one of {sorted(corpora.CORPORA)}.")
        folder = Path.home() / ".cache" / "keras_transformer" / args.data
        corpora.fetch_corpus(args.data, folder)
    # In reverse, so that of two files the plain one stays.
    files = {p.name.removesuffix(".gz"): p for p in sorted(folder.iterdir(), reverse=True)}
    endings = f".{args.source}", f".{args.target}"

    def read(*names):
        for name in names:
            pair = [files.get(name + ending) for ending in endings]
            if all(pair):
                sides = corpora.read_parallel(*pair, undo_bpe=args.undo_bpe)
                if not sides[0]:
                    raise ValueError(f"{pair[0]} and {pair[1]} are empty.")
                return [side[: args.limit] for side in sides]
        raise ValueError(
            f"{folder} has no {' or '.join(names)} with both {' and '.join(endings)}. Name the "
            "files with --train, --valid, --test."
        )

    tests = args.test
    if tests is None:
        found = (name for name in sorted(files) if name.startswith("test"))
        tests = [name.removesuffix(endings[0]) for name in found if name.endswith(endings[0])]
    valid = [args.valid] if args.valid else ["valid", "val", "dev"]
    return read(args.train), read(*valid), {name: read(name) for name in tests}


# --- training ---


def choose_strategy(replicas):
    """MirroredStrategy over the GPUs, or over that many logical CPUs where there is none."""
    count = len(tf.config.list_physical_devices("GPU"))
    if replicas and count and replicas > count:
        raise ValueError(f"--replicas {replicas} is more than the {count} GPUs there are.")
    if not count and replicas and replicas > 1:
        logical = [tf.config.LogicalDeviceConfiguration()] * replicas
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, logical)
    kind = "GPU" if count else "CPU"
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(replicas or count or 1)])


def claim_output(args, train_text):
    """What makes this run what it is. Refuses a folder that holds another one."""
    words = "\n".join(train_text[0] + train_text[1])
    run = {name: dict(PRESETS[args.preset][name]) for name in ("model", "rate")}
    if run["rate"].get("anneal"):
        run["rate"]["epochs"] = args.epochs
    for name in ("vocab_size", "tokens_per_batch", "sampling_alpha", "replicas", "dtype", "seed"):
        run[name] = getattr(args, name)
    run["train_sha256"] = hashlib.sha256(words.encode()).hexdigest()
    path, files = args.output / "run.json", checkpoints(args.output)
    if args.evaluate and not files:
        raise ValueError(f"--evaluate: {args.output} holds no finished epoch. Train first.")
    if path.exists():
        other = json.loads(path.read_text("utf-8"))
        names = ", ".join(name for name in run if run[name] != other.get(name))
        if names:
            raise ValueError(
                f"{args.output} holds another run: it differs in {names}. Repeat its arguments to "
                "go on with it, or choose another --output."
            )
    elif files and not args.evaluate:
        raise ValueError(
            f"{args.output} holds checkpoints, but no run.json that says of what run. Choose "
            "another --output, or use them with --evaluate."
        )
    elif not files:
        args.output.mkdir(parents=True, exist_ok=True)
        with in_place(path) as aside:
            aside.write_text(json.dumps(run, indent=2), "utf-8")
    return run


def checkpoints(folder):
    """Weights after each epoch, counted from 1: a dict from epoch to file."""
    return {int(p.stem[-5:]) + 1: p for p in sorted((folder / "weights").glob("weights-*.npz"))}


@contextlib.contextmanager
def in_place(path):
    """A name to write to; what is there in the end is moved to `path`, whole."""
    aside = path.with_name(f"part-{path.name}")
    yield aside
    os.replace(aside, path)


def learning_rate(*, updates, anneal=False, **rate):
    """The paper's schedule, or one that is back at zero after all `updates`."""
    if not anneal:
        return kt.InverseSquareRootWarmup(**rate)
    return keras.optimizers.schedules.CosineDecay(
        0.0,
        decay_steps=max(1, updates - rate["warmup_steps"]),
        warmup_target=rate["peak"],
        warmup_steps=rate["warmup_steps"],
    )


def train(args, text, valid_text, tokenizer, strategy):
    """Trains up to `args.epochs`, from where it was stopped on; False if stopped by Ctrl-C."""
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    options = {
        "static_shapes": on_gpu,  # XLA compiles anew for each shape
        "batch_multiple": strategy.num_replicas_in_sync,
    }
    batches = kt.translation_batches(
        *text,
        tokenizer,
        args.tokens_per_batch,
        seed=args.seed,
        sampling_alpha=args.sampling_alpha,
        **options,
    )
    valid_batches = kt.translation_batches(
        *valid_text, tokenizer, args.tokens_per_batch, shuffle=False, **options
    )
    print(f"training: {batches.batches.report}\nvalidation: {valid_batches.batches.report}")
    with strategy.scope():
        preset = PRESETS[args.preset]
        model = kt.Transformer(tokenizer.vocab_size, **preset["model"], dtype=args.dtype)
        rate = learning_rate(**preset["rate"], updates=args.epochs * len(batches))
        model.compile(
            keras.optimizers.Adam(rate, 0.9, 0.98, 1e-9, global_clipnorm=1.0),
            loss=kt.SequenceCrossentropy(label_smoothing=0.1),
            weighted_metrics=[kt.Perplexity()],
            jit_compile=on_gpu,
        )
    kt.training.prepare(model)
    print(f"{model.count_params():,} parameters, {strategy.num_replicas_in_sync} replicas")
    clock = {}
    minutes = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: clock.update(begin=time.perf_counter()),
        on_epoch_end=lambda epoch, logs: logs.update(
            minutes=(time.perf_counter() - clock["begin"]) / 60
        ),
    )
    history = keras.callbacks.CSVLogger(str(args.output / "history.csv"), append=True)
    callbacks = [
        kt.StopOnNonFinite(),
        kt.Throughput(batches),
        minutes,
        history,
        kt.CheckpointAveraging(args.output / "weights", last=args.epochs),
        kt.TrainingCheckpoint(args.output / "state", every=500, data=batches),
    ]
    try:
        model.fit(
            batches,
            validation_data=valid_batches,
            epochs=args.epochs,
            shuffle=False,  # translation_batches shuffles
            callbacks=callbacks,
        )
    except KeyboardInterrupt:
        history.on_train_end()  # `fit` did not come to it
        return False
    return True


def read_history(folder):
    """What was logged after each epoch: a dict from name to a list."""
    path = folder / "history.csv"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    # Of an epoch done twice, for it was killed before its checkpoint, the later one.
    rows = {int(row.pop("epoch")): row for row in csv.DictReader(lines)}
    names = rows[min(rows)] if rows else ()
    return {name: [float(rows[epoch][name]) for epoch in sorted(rows)] for name in names}


# --- choice and evaluation ---


def bleu(translations, references, tokenize):
    """What sacreBLEU says, and the share of translations that are their reference."""
    # `force` keeps it from warning of tokenised text where that is meant.
    scorer = sacrebleu.metrics.BLEU(tokenize=tokenize, force=tokenize == "none")
    score = scorer.corpus_score(translations, [references])
    return {
        "bleu": score.score,
        "precisions": score.precisions,
        "brevity_penalty": score.bp,
        "lengths": {"system": score.sys_len, "reference": score.ref_len},
        "signature": str(scorer.get_signature()),
        "exact_match": sum(map(str.__eq__, translations, references)) / len(references),
    }


def averages(epochs, val_loss, usual):
    """Which epochs to try the average of: the last ones, and those around the best loss."""
    tried = [epochs[-n:] for n in (1, usual // 2, usual, 2 * usual) if 0 < n <= len(epochs)]
    known = [epoch for epoch in epochs if epoch <= len(val_loss)]
    if known:
        best = epochs.index(min(known, key=lambda epoch: val_loss[epoch - 1]))
        first = max(0, min(best - usual // 2, len(epochs) - usual))
        tried.append(epochs[first : first + usual])
    return [chosen for i, chosen in enumerate(tried) if chosen not in tried[:i]]


def choose(args, model, tokenizer, valid, val_loss):
    """Tries averages, then length penalties, by validation BLEU; leaves the best in `model`."""
    files = checkpoints(args.output)
    tried = []

    def load(epochs):
        model.set_weights(kt.average_checkpoints([files[epoch] for epoch in epochs]))

    def attempt(epochs, penalty):
        load(epochs)
        search = kt.BeamSearch(args.beam_width, penalty)
        score = bleu(translate(search, model, tokenizer, valid[0]), valid[1], args.bleu_tokenize)
        tried.append({"epochs": epochs, "length_penalty": penalty, "bleu": score["bleu"]})
        print(f"{epochs[0]:6}-{epochs[-1]:<6}{penalty:>14}{score['bleu']:>9.2f}", flush=True)

    def best():
        return max(tried, key=lambda attempt: attempt["bleu"])  # the first of equal ones

    print("Choice on the validation set\n       epochs  length penalty  BLEU")
    penalties = sorted(args.length_penalty, key=lambda penalty: abs(penalty - 1))
    for epochs in averages(sorted(files), val_loss, PRESETS[args.preset]["average"]):
        attempt(epochs, penalties[0])
    for penalty in penalties[1:]:
        attempt(best()["epochs"], penalty)
    load(best()["epochs"])
    return {**best(), "tried": tried}


def measure(args, model, tokenizer, tests, length_penalty):
    """Scores of each test set, and samples: (source, translation) of the last one."""
    search = kt.BeamSearch(args.beam_width, length_penalty)
    scores = {}
    for name, (sources, references) in tests.items():
        translations = translate(search, model, tokenizer, sources)
        scores[name] = bleu(translations, references, args.bleu_tokenize)
        print(f"{name}: BLEU {scores[name]['bleu']:.2f} ({scores[name]['signature']}), "
              f"exact match {scores[name]['exact_match']:.1%}")  # fmt: skip
    return scores, list(zip(sources, translations, strict=True))[:20]


def draw(output, model, tokenizer, history, samples):
    """The learning curve, and where the decoder looks while it translates a sentence."""
    curves = {name: history[name] for name in history if name.endswith(("loss", "perplexity"))}
    if curves:
        with in_place(output / "learning_curve.png") as aside:
            plots.plot_learning_curve(curves).savefig(aside)
    # A sentence that fits on a page.
    line, translation = min(samples, key=lambda sample: abs(len(sample[0].split()) - 8))
    source = [*tokenizer.encode(line), kt.special_ids.END_ID]
    target = [kt.special_ids.BEGIN_ID, *tokenizer.encode(translation)]
    maps = plots.attention_maps(model, source, target)
    labels = [plots.token_labels(tokenizer, ids) for ids in (target, source)]
    with in_place(output / "attention.png") as aside:
        plots.plot_attention(maps["cross"], *labels).savefig(aside)


def finish(args, argv, run, valid_text, tests, tokenizer, stopped):
    """Chooses, saves and measures the model, and writes down what the run was."""
    files, history = checkpoints(args.output), read_history(args.output)
    if not files:
        print("Stopped before the first epoch ended. The same command goes on.")
        return
    # In float32, whatever was trained in: that is what exports and other backends take.
    model = kt.Transformer(tokenizer.vocab_size, **PRESETS[args.preset]["model"])
    if stopped:  # somebody waits: no search for the best average
        last = sorted(files)[-PRESETS[args.preset]["average"] :]
        model.set_weights(kt.average_checkpoints([files[epoch] for epoch in last]))
    else:
        chosen = choose(args, model, tokenizer, valid_text, history.get("val_loss", []))
    with in_place(args.output / "model.keras") as aside:
        model.save(aside)
    if stopped:
        print(f"Stopped. {args.output / 'model.keras'} has the average of epochs {last}. The same "
              "command goes on; with --evaluate it measures what is there.")  # fmt: skip
        return
    tests = tests or {"valid": valid_text}
    scores, samples = measure(args, model, tokenizer, tests, chosen["length_penalty"])
    for source, translation in samples[:5]:
        print(f"  {source} -> {translation}")
    draw(args.output, model, tokenizer, history, samples)
    rates = history.get("tokens_per_second")
    metrics = {
        # Folders by their last part: where they lie is nobody else's business.
        "command": shlex.join(
            ["python", "examples/translate.py", *(arg.split(os.sep)[-1] for arg in argv)]
        ),
        "seed": args.seed,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("tensorflow", "keras", "sentencepiece", "sacrebleu")},
        "device": "GPU" if tf.config.list_physical_devices("GPU") else "CPU",
        "recipe": run,
        "parameters": model.count_params(),
        "epochs": max(files),
        "minutes": sum(history["minutes"]) if "minutes" in history else None,
        "tokens_per_second": statistics.median(rates) if rates else None,
        "beam_width": args.beam_width,
        "chosen_on_validation": chosen,
        "scores": scores,
        "history": history,
    }
    with in_place(args.output / "metrics.json") as aside:
        aside.write_text(json.dumps(metrics, indent=2) + "\n", "utf-8")
    print(f"Saved in {args.output}: model.keras, tokenizer.model, metrics.json, "
          "learning_curve.png, attention.png")  # fmt: skip


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    args = parse_arguments(argv)
    try:
        text, valid_text, tests = read_files(args) if args.data else number_words(args)
        run = claim_output(args, text)
        strategy = choose_strategy(args.replicas)
        keras.utils.set_random_seed(args.seed)
        path = args.output / "tokenizer.model"
        if not path.exists():
            kt.Tokenizer.train(text[0] + text[1], vocab_size=args.vocab_size).save(path)
        tokenizer = kt.Tokenizer.load(path)
        stopped = not args.evaluate and not train(args, text, valid_text, tokenizer, strategy)
        finish(args, argv, run, valid_text, tests, tokenizer, stopped)
    except (ValueError, OSError) as error:  # which say what is wrong; others show where
        sys.exit(f"translate.py: {error}")
    if stopped:
        sys.exit(130)  # what shells take for Ctrl-C


if __name__ == "__main__":
    main()
