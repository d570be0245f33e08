"""From two text files to a translator: tokenizer, training, search, BLEU.

    python examples/translate.py                                     # number words, no files needed
    python examples/translate.py --data DIR --source en --target de  # train.en, train.de, valid.en, ...

Trains under `tf.distribute.MirroredStrategy` (all GPUs, or logical CPUs with `--replicas`),
averages the last checkpoints, and leaves in `--output`: model.keras, tokenizer.model,
metrics.json, learning_curve.png, attention.png, and the epochs' checkpoints.
"""

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import sacrebleu
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.corpora import read_parallel

# Shape, dropout and recipe of each size. "tiny" is the model of the Multi30k results in the
# README, "base" and "big" are the paper's (sections 5.3, 5.4 and Table 3).
PRESETS = {
    "tiny": {
        "model": dict(num_layers=4, d_model=128, num_heads=4, d_ff=256, dropout=0.3),
        "rate": dict(peak=0.0025, warmup_steps=1500),
        "tokens_per_batch": 4096,
        "vocab_size": 5000,
        "epochs": 100,
        "average": 10,
    },
    "base": {
        "model": dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout=0.1),
        "rate": dict(d_model=512, warmup_steps=4000),
        "tokens_per_batch": 25000,
        "vocab_size": 32000,
        "epochs": 20,
        "average": 5,
    },
    "big": {
        "model": dict(num_layers=6, d_model=1024, num_heads=16, d_ff=4096, dropout=0.3),
        "rate": dict(d_model=1024, warmup_steps=4000),
        "tokens_per_batch": 25000,
        "vocab_size": 32000,
        "epochs": 20,
        "average": 20,
    },
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with train.SOURCE, train.TARGET, ...")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--train", default="train", help="name of the training files")
    parser.add_argument("--valid", default="valid", help="name of the validation files")
    parser.add_argument("--test", nargs="*", default=[], help="names of test files")
    parser.add_argument("--undo-bpe", action="store_true", help="join words cut by '@@ '")
    parser.add_argument(
        "--bleu-tokenize", default="13a", help="sacreBLEU's tokenizer; none for tokenised text"
    )
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--replicas", type=int, help="default: every GPU, or one CPU")
    parser.add_argument("--dtype", default="float32", help="or mixed_bfloat16, mixed_float16")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--tokens-per-batch", type=int)
    parser.add_argument("--sampling-alpha", type=float, help="subword sampling while training")
    parser.add_argument("--beam-width", type=int, default=5)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("translator"))
    return parser.parse_args()


def choose_strategy(replicas):
    """MirroredStrategy over the GPUs, or over that many logical CPUs where there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        names = [f"GPU:{i}" for i in range(len(gpus))][:replicas]
    else:
        replicas = replicas or 1
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)]
        tf.config.set_logical_device_configuration(cpu, logical)
        names = [f"CPU:{i}" for i in range(replicas)]
    return tf.distribute.MirroredStrategy(names)


def corpus(args, name):
    """The parallel lines `name`.SOURCE and `name`.TARGET of the data folder, plain or .gz."""
    files = []
    for language in (args.source, args.target):
        plain = args.data / f"{name}.{language}"
        packed = plain.with_name(plain.name + ".gz")
        if not plain.exists() and not packed.exists():
            sys.exit(f"Neither {plain} nor {packed} exists. Name the files with --train/--valid.")
        files.append(plain if plain.exists() else packed)
    return read_parallel(*files, undo_bpe=args.undo_bpe)


def translate(search, model, tokenizer, lines, batch_tokens=8192):
    """Best translations of `lines`, in their order; searched in batches of similar length."""
    ids = [row + [kt.text.END_ID] for row in tokenizer.encode(lines)]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    translations = [""] * len(ids)
    while order:
        longest = len(ids[order[-1]])
        batch, order = order[-max(1, batch_tokens // longest) :], order[: -max(1, batch_tokens // longest)]
        padded = keras.utils.pad_sequences([ids[i] for i in batch], padding="post")
        best = search(model, padded).ids[:, 0].numpy()
        for i, text in zip(batch, tokenizer.decode(best.tolist()), strict=True):
            translations[i] = text
    return translations


def bleu(translations, references, tokenize):
    scorer = sacrebleu.metrics.BLEU(tokenize=tokenize)
    score = scorer.corpus_score(translations, [references])
    return {"bleu": score.score, "details": str(score), "signature": str(scorer.get_signature())}


def average_weights(model, paths):
    """Sets the mean of several checkpoints' weights (section 6.1)."""
    total = None
    for path in paths:
        model.load_weights(path)
        weights = model.get_weights()
        total = weights if total is None else [a + b for a, b in zip(total, weights, strict=True)]
    model.set_weights([array / len(paths) for array in total])


def main():
    args = parse_arguments()
    preset = PRESETS[args.preset]
    args.output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(args.seed)
    strategy = choose_strategy(args.replicas)

    sources, targets = corpus(args, args.train)
    valid_sources, valid_targets = corpus(args, args.valid)
    tokenizer = kt.Tokenizer.train(
        sources + targets, vocab_size=args.vocab_size or preset["vocab_size"]
    )
    tokenizer.save(args.output / "tokenizer.model")
    tokens_per_batch = args.tokens_per_batch or preset["tokens_per_batch"]
    train = kt.translation_batches(
        sources,
        targets,
        tokenizer,
        tokens_per_batch,
        seed=args.seed,
        sampling_alpha=args.sampling_alpha,
        batch_multiple=strategy.num_replicas_in_sync,
    )
    valid = kt.translation_batches(
        valid_sources, valid_targets, tokenizer, tokens_per_batch, shuffle=False,
        batch_multiple=strategy.num_replicas_in_sync,
    )
    print(train.batches.report)

    with strategy.scope():
        model = kt.Transformer(tokenizer.vocab_size, **preset["model"], dtype=args.dtype)
        model.compile(
            keras.optimizers.Adam(
                kt.InverseSquareRootWarmup(**preset["rate"]), 0.9, 0.98, 1e-9, global_clipnorm=1.0
            ),
            loss=kt.SequenceCrossentropy(label_smoothing=0.1),
            weighted_metrics=[kt.Perplexity()],
            jit_compile=bool(tf.config.list_physical_devices("GPU")),
        )
    print(f"{model.count_params():,} parameters")
    start = time.perf_counter()
    model.fit(
        train,
        validation_data=valid,
        epochs=args.epochs or preset["epochs"],
        verbose=1,
        shuffle=False,  # translation_batches shuffles
        callbacks=[
            keras.callbacks.ModelCheckpoint(
                str(args.output / "epoch-{epoch:03d}.weights.h5"), save_weights_only=True
            ),
            keras.callbacks.CSVLogger(str(args.output / "history.csv"), append=True),
        ],
    )
    print(f"trained in {(time.perf_counter() - start) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
