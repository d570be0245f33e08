"""A recipe for a few thousand pairs, beside KerasHub's layers.

    python benchmarks/little.py --output benchmarks/results/little.json

Each run trains a model of 2 + 2 layers (d_model 128, d_ff 256, 4 heads, dropout 0.1) on 3,000 pairs
of characters in 12 epochs of about 60 updates. It then counts the other 599 pairs whose greedy
output is right in every token. An output is right exactly if each token is the most likely one
after the right tokens before it, so one forward pass counts them.

Recipes were chosen on the tasks of `little_tasks.CHOICE`. The runs of a recipe and a task are one
process. Runs that the output file has already stay there.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import common
import little_rows
import little_tasks

BATCH, EPOCHS, LONGEST = 50, 12, 128
SIZE = dict(d_model=128, num_heads=4, d_ff=256, dropout=0.1)
ADAM = dict(learning_rate=1e-3)
RECIPES = {
    "KerasHub": dict(adam=ADAM),
    "ours, recipe for little data": dict(
        model=dict(positions="learned", attention_dropout=0.1), adam=ADAM
    ),
    "ours, defaults": dict(sorted=True, adam=ADAM),
    "ours, defaults, warm-up and smoothing": dict(
        sorted=True, peak=2e-3, smoothing=0.1, adam=dict(beta_2=0.98, epsilon=1e-9)
    ),
}


def arrays(pairs):
    """Pads rows of ids: inputs and labels of a model."""
    from keras_transformer.data.translation import shift_targets
    from keras_transformer.padding import pad_rows

    sources, targets = pairs
    target_ids, labels = shift_targets(targets, len(targets), None)
    return {"source_ids": pad_rows(sources, len(sources), None), "target_ids": target_ids}, labels


def keras_hub_model(vocab_size):
    """Builds an encoder-decoder of KerasHub's layers, with their defaults."""
    import keras
    from keras_hub import layers

    import keras_transformer as kt

    names = ("source_ids", "target_ids")
    ids = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    masks = [kt.padding_mask(each) for each in ids.values()]
    memory, x = (
        layers.TokenAndPositionEmbedding(vocab_size, LONGEST, SIZE["d_model"])(each)
        for each in ids.values()
    )
    block = dict(num_heads=SIZE["num_heads"], dropout=SIZE["dropout"])
    for _ in range(2):
        memory = layers.TransformerEncoder(SIZE["d_ff"], **block)(memory, padding_mask=masks[0])
    for _ in range(2):
        x = layers.TransformerDecoder(SIZE["d_ff"], **block)(
            x, memory, decoder_padding_mask=masks[1], encoder_padding_mask=masks[0]
        )
    return keras.Model(ids, keras.layers.Dense(vocab_size)(x))


def runs(task, recipe, seeds):
    """Yields the figures of a run for each seed."""
    import keras
    import numpy as np

    import keras_transformer as kt
    from keras_transformer.special_ids import END_ID

    options = RECIPES[recipe]
    train, test = little_tasks.pairs(task)
    lines = [line for side in train for line in side]
    tokenizer = kt.Tokenizer.train(lines, 1000, model_type="char", byte_fallback=False)

    def ids(sides):
        return [
            [np.array([*row, END_ID]) for row in tokenizer.encode(list(side))] for side in sides
        ]

    lengths = [[len(row) for row in side] for side in ids(train)]
    tokens, longest = max(map(sum, lengths)), max(map(max, lengths))

    def batches(seed):
        size, boundaries = BATCH * longest, [longest]  # one bucket: 50 pairs of any length
        if options.get("sorted"):  # by length, and as many batches
            size, boundaries = tokens // (len(train[0]) // BATCH - 5), None
        return kt.translation_batches(
            *train, tokenizer, size, seed=seed, bucket_boundaries=boundaries
        )

    def new_model():
        if recipe == "KerasHub":
            return keras_hub_model(tokenizer.vocab_size)
        arguments = {**SIZE, **options.get("model", {})}
        if arguments.get("positions") == "learned":
            arguments["positions"] = kt.LearnedPositionEncoding(LONGEST)
        return kt.Transformer(tokenizer.vocab_size, num_layers=2, **arguments)

    model = None
    for seed in seeds:
        keras.utils.set_random_seed(seed)
        fresh, data = new_model(), batches(seed)
        updates = EPOCHS * len(data)
        if model is None:
            model, adam = fresh, dict(options["adam"])
            if "peak" in options:
                adam["learning_rate"] = kt.InverseSquareRootWarmup(
                    peak=options["peak"], warmup_steps=1 + updates // 10
                )
            loss = kt.SequenceCrossentropy(label_smoothing=options.get("smoothing", 0.0))
            # Several steps a call only save time.
            model.compile(keras.optimizers.Adam(**adam), loss=loss, steps_per_execution=20)
            model.optimizer.build(model.trainable_variables)
            start = [keras.ops.convert_to_numpy(each) for each in model.optimizer.variables]
        for variable, value in zip(model.variables, fresh.variables, strict=True):
            variable.assign(value)
        for variable, value in zip(model.optimizer.variables, start, strict=True):
            variable.assign(value)
        history = model.fit(data, epochs=EPOCHS, verbose=0)
        inputs, labels = arrays(ids(test))
        found = np.argmax(model.predict(inputs, batch_size=100, verbose=0), axis=-1)
        yield {
            "task": task,
            "recipe": recipe,
            "seed": seed,
            "right": int(((found == labels) | (labels == 0)).all(axis=1).sum()),
            "of": len(labels),
            "updates": updates,
            "parameters": model.count_params(),
            "loss": round(history.history["loss"][-1], 4),
            "cpu_seconds": round(resource.getrusage(resource.RUSAGE_SELF).ru_utime),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=[*little_tasks.REPORTED])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=[*RECIPES][:2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        for row in runs(args.tasks[0], args.recipes[0], args.seeds):
            print(json.dumps(row), flush=True)
        return
    report = {"runs": []}
    if args.output and args.output.exists():
        report = json.loads(args.output.read_text("utf-8"))
    threads = {f"TF_NUM_{kind}OP_THREADS": str(args.threads) for kind in ("INTRA", "INTER")}
    for task in args.tasks:
        for recipe in args.recipes:
            done = {
                row["seed"]
                for row in report["runs"]
                if (row["task"], row["recipe"]) == (task, recipe)
            }
            seeds = [str(seed) for seed in args.seeds if seed not in done]
            if not seeds:
                continue
            command = [sys.executable, __file__, "--worker", "--tasks", task, "--recipes", recipe]
            with subprocess.Popen(
                [*command, "--seeds", *seeds],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **threads},
            ) as process:
                for line in process.stdout:
                    print(line, end="", flush=True)
                    report = {**common.head(args), "runs": [*report["runs"], json.loads(line)]}
                    report["versions"] |= common.versions("keras-hub")
                    if args.output:
                        common.write(report, args.output)
    print(little_rows.table(report))


if __name__ == "__main__":
    main()
