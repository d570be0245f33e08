"""A recipe for a few thousand pairs, beside KerasHub's layers.

    python benchmarks/little.py --output benchmarks/results/little.json

Each run trains a model of 2 + 2 layers (d_model 128, d_ff 256, 4 heads, dropout 0.1) on 3,000 pairs
of characters in 12 epochs of about 60 updates. It then counts the other 599 pairs whose greedy
output is right in every token. An output is right exactly if each token is the most likely one
after the right tokens before it, so one forward pass counts them.

Recipes were chosen on the tasks of `little_tasks.CHOICE`. The runs of a recipe and a task are one
process. Runs that the output file has already stay there.
"""

import itertools
import os
import resource

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench
import little_tasks

BATCH, EPOCHS, LONGEST = 50, 12, 128
SIZE = dict(d_model=128, num_heads=4, d_ff=256, dropout=0.1)
# Further arguments of the model, and whether batches are sorted by length.
RECIPES = {
    "KerasHub": {},
    "ours, recipe for little data": {
        "model": {"positions": "learned", "attention_dropout": 0.1},
    },
    "ours, defaults": {"sorted": True},
}


def arrays(pairs):
    """Pads rows of ids: inputs and labels of a model."""
    from keras_transformer.data.examples import begun
    from keras_transformer.padding import pad_rows

    sources, targets = pairs
    target_ids = pad_rows([begun(row) for row in targets])
    return {"source_ids": pad_rows(sources), "target_ids": target_ids}, pad_rows(targets)


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


def runs(task):
    """Returns the number of updates, and a function from a seed to the figures of a run.

    All seeds use one compiled model, which gets the variables of a fresh one.
    """
    import keras
    import numpy as np

    import keras_transformer as kt
    from keras_transformer.special_ids import END_ID

    options = RECIPES[task["recipe"]]
    train, test = little_tasks.pairs(task["task"])
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
        if task["recipe"] == "KerasHub":
            return keras_hub_model(tokenizer.vocab_size)
        arguments = {**SIZE, **options.get("model", {})}
        if arguments.get("positions") == "learned":
            arguments["positions"] = kt.LearnedPositionEncoding(LONGEST)
        return kt.Transformer(tokenizer.vocab_size, num_layers=2, **arguments)

    updates = task["epochs"] * len(batches(0))
    model = new_model()
    # Several steps a call only save time.
    model.compile(
        keras.optimizers.Adam(1e-3), loss=kt.SequenceCrossentropy(), steps_per_execution=20
    )
    model.optimizer.build(model.trainable_variables)
    start = [keras.ops.convert_to_numpy(each) for each in model.optimizer.variables]
    inputs, labels = arrays(ids(test))

    def run(seed):
        keras.utils.set_random_seed(seed)
        fresh, data = new_model(), batches(seed)
        for variable, value in zip(model.variables, fresh.variables, strict=True):
            variable.assign(value)
        for variable, value in zip(model.optimizer.variables, start, strict=True):
            variable.assign(value)
        history = model.fit(data, epochs=task["epochs"], verbose=0)
        found = np.argmax(model.predict(inputs, batch_size=100, verbose=0), axis=-1)
        return {
            "seed": seed,
            "right": int(((found == labels) | (labels == 0)).all(axis=1).sum()),
            "of": len(labels),
            "updates": updates,
            "parameters": model.count_params(),
            "loss": round(history.history["loss"][-1], 4),
            "cpu_seconds": round(resource.getrusage(resource.RUSAGE_SELF).ru_utime),
        }

    return {"updates": updates}, run


def main():
    parser = bench.Parser(__doc__, threads=1)
    parser.add_argument("--tasks", nargs="+", default=[*little_tasks.REPORTED])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=[*RECIPES][:2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    args = parser.parse_args()
    report = {"runs": [], **bench.earlier(args)}
    done = bench.grouped(report["runs"], "task", "recipe", "seed")
    threads = {f"TF_NUM_{kind}OP_THREADS": str(args.threads) for kind in ("INTRA", "INTER")}
    for key in itertools.product(args.tasks, args.recipes):
        seeds = [seed for seed in args.seeds if (*key, seed) not in done]
        if not seeds:
            continue
        task = dict(zip(("task", "recipe"), key, strict=True))
        with bench.engines("little:runs", {key[1]: task | {"epochs": args.epochs}}, threads) as one:
            for seed in seeds:
                report["runs"].append({**task, **one[key[1]](seed=seed)})
                bench.keep(args, {"runs": report["runs"]}, "keras-hub")
    bench.finish(args, "little", {"runs": report["runs"]}, "keras-hub")


if __name__ == "__main__":
    main()
