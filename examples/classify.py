"""Classifies texts: questions by the kind of their answer, or film reviews by sentiment.

    python examples/classify.py                               # opinions made of a few words
    python examples/classify.py --data DIR --set trec         # DIR/sentiment/TREC.train.all, ...
    python examples/classify.py --data DIR --set sst2         # DIR/sentiment/train.tsv, ...
    python examples/classify.py --data DIR --set imdb         # DIR/imdb/train.jsonl.gz, ...

Convolutions combine each word with its neighbours. A class token in front attends to all words, and
its vector after the last block gives the class. The validation set selects the epoch, or is part of
the training set (TREC, SST-2, with a fixed number of epochs). ONNX Runtime predicts the classes of
the test set.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from support import task_run
from support.baselines import text_classes
from support.plots import plot_confusion, plot_words
from support.recipes import learning_rate
from support.sets import labelled_texts

import keras_transformer as kt
from keras_transformer import export, plots
from keras_transformer.export.runtime import Predictor

LONGEST = 5000  # pieces of a text in validation and export; training truncates to `longest`
# Reader, settings and published scores of each set. No setting was chosen on a test set.
USUAL = dict(
    d_model=128,
    filters=128,
    widths=[3],
    word_dropout=0.0,
    max_pooled=False,
    alpha=None,
    tokens={},
    vocab_size=4000,
    longest=64,
    tokens_per_batch=1024,
    peak=0.001,
    choose_epoch=True,
)
SETS = {
    "made": dict(
        name="opinions made of a few words",
        read=lambda data, limit: labelled_texts.made_opinions(limit),
        d_model=64,
        filters=64,
        input_dropout=0.1,
        dropout=0.1,
        vocab_size=400,
        peak=0.003,
        epochs=8,
    ),
    "trec": dict(
        name="TREC",
        read=lambda data, limit: labelled_texts.read_trec(data / "sentiment", limit),
        d_model=192,
        filters=64,
        widths=[3, 4, 5],
        max_pooled=True,
        word_dropout=0.1,
        dropout=0.3,
        input_dropout=0.4,
        tokens=dict(model_type="word", byte_fallback=False),
        vocab_size=3500,
        tokens_per_batch=768,
        epochs=12,
        choose_epoch=False,
        published={"CCT (2021)": 0.93},
    ),
    "sst2": dict(
        name="SST-2",
        read=lambda data, limit: labelled_texts.read_sst2(data / "sentiment", limit),
        word_dropout=0.2,
        input_dropout=0.4,
        dropout=0.4,
        alpha=0.5,
        epochs=12,
        choose_epoch=False,
        published={"CNN-rand (2014)": 0.827},
    ),
    "imdb": dict(
        name="IMDB",
        read=lambda data, limit: labelled_texts.read_imdb(data / "imdb", limit),
        d_model=64,
        filters=64,
        input_dropout=0.3,
        dropout=0.3,
        vocab_size=8000,
        longest=256,
        tokens_per_batch=4096,
        peak=0.002,
        epochs=3,
        published={"keras.io's block": 0.87},
    ),
}


def parse_arguments(argv):
    parser = task_run.make_parser("classify", __doc__, epochs=None)
    parser.add_argument("--set", choices=[*SETS][1:], help="data set; needs --data")
    args = task_run.parse(parser, argv)
    if bool(args.data) != bool(args.set):
        parser.error("--data and --set go together")
    recipe = USUAL | SETS[args.set or "made"]
    args.epochs = args.epochs or recipe["epochs"]
    return args, recipe


def batches(texts, tokenizer, recipe, args):
    """Makes training and validation batches. With `alpha`, each epoch draws other word pieces."""
    train = kt.classification_batches(
        *texts.train,
        tokenizer,
        recipe["tokens_per_batch"],
        label_names=texts.labels,
        max_length=recipe["longest"],
        truncate=True,
        sampling_alpha=recipe["alpha"],
        seed=args.seed,
    )
    valid = kt.classification_batches(
        *texts.valid, tokenizer, label_names=texts.labels, max_length=LONGEST, shuffle=False
    )
    return train, valid


def classifier(recipe, vocab_size, classes):
    """Makes a model from ids (B, S) to class logits (B, C). A class token attends to all words."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = kt.TokenEmbedding(vocab_size, recipe["d_model"])(source_ids)  # (B, S, D)
    x = keras.layers.Dropout(recipe["word_dropout"], (None, None, 1))(x)  # drops whole tokens
    x = keras.layers.Dropout(recipe["input_dropout"])(x)
    near = [kt.MaskedConv1D(recipe["filters"], k, activation="relu")(x) for k in recipe["widths"]]
    x = keras.layers.LayerNormalization()(keras.layers.Add()([x, keras.layers.Concatenate()(near)]))
    x = kt.SinusoidalPositionEncoding()(kt.ClassToken()(x))  # (B, S + 1, D)
    x = keras.layers.Dropout(recipe["dropout"])(x)
    x = kt.EncoderBlock(4, 2 * recipe["d_model"], recipe["dropout"])(x)
    x = [x[:, 0], kt.SequencePooling("max")(x)] if recipe["max_pooled"] else [x[:, 0]]  # (B, D)
    x = keras.layers.Dropout(recipe["dropout"])(keras.layers.Concatenate()(x))
    return kt.Model(source_ids, keras.layers.Dense(classes)(x))


def draw_words(run, model, tokenizer, answers):
    """Plots the attention of the class token in the last block, averaged over heads."""
    sentences, weights, labels = [], [], []
    for text, result in answers:
        ids, spans = tokenizer.encode_with_spans(text)
        maps = plots.block_attention(model, np.array([ids], "int32"))[-1]  # (1, H, S + 1, S + 1)
        sentences.append([text[start:end] for start, end in spans])
        weights.append(maps[0, :, 0, 1:].mean(axis=0))
        labels.append(f"{result.label} {result.probability:.2f}")
    run.draw("words.png", plot_words(sentences, weights, labels))


def main(argv=None):
    args, recipe = parse_arguments(argv)
    with task_run.TaskRun(args) as run:
        texts = recipe["read"](args.data, args.limit)
        if not recipe["choose_epoch"]:  # train on the validation set, too
            texts = texts._replace(train=[a + b for a, b in zip(*texts[:2], strict=True)])
        # Fold case, so that a word at the start of a sentence is the same as within it.
        tokenizer = kt.Tokenizer.train(
            texts.train[0],
            recipe["vocab_size"],
            normalization="nmt_nfkc_cf",
            hard_vocab_limit=False,
            **recipe["tokens"],
        )
        train, valid = batches(texts, tokenizer, recipe, args)
        print(f"training: {train.batches.report}\nvalidation: {valid.batches.report}")
        model = classifier(recipe, tokenizer.vocab_size, len(texts.labels))
        updates = args.epochs * len(train)
        rate = learning_rate(peak=recipe["peak"], warmup_steps=100, anneal=True, updates=updates)
        model.compile(
            keras.optimizers.Adam(rate, global_clipnorm=1.0),
            loss=kt.SequenceCrossentropy(label_smoothing=0.1, pad_id=-1),
            metrics=[kt.TokenAccuracy(pad_id=-1, name="accuracy")],
        )
        chosen = dict(validation_data=valid, best="val_accuracy") if recipe["choose_epoch"] else {}
        run.fit(model, train, epochs=args.epochs, **chosen)
        head, folder = export.Classification(texts.labels), run.path / "onnx"
        export.export_onnx(model, folder, tokenizer, head=head, max_source_length=LONGEST)
        results = Predictor(folder).predict(texts.test[0])
        found = [result.label for result in results]
        usual = max(texts.labels, key=texts.train[1].count)
        linear = text_classes(*texts.train, texts.test[0])
        others = {f"always {usual!r}": usual, "tf-idf and linear SVM": linear}
        true = np.array(texts.test[1])
        accuracy, *simple = (float(np.mean(true == some)) for some in (found, *others.values()))
        run.draw("confusion.png", plot_confusion(texts.test[1], found, texts.labels))
        pairs = zip(texts.test[0], results, strict=True)
        shown = [(text, result) for text, result in pairs if 20 <= len(text) <= 80][:8]
        draw_words(run, model, tokenizer, shown)
        facts = dict(data=recipe["name"], published=recipe.get("published"))
        facts["baseline"] = dict(zip(others, simple, strict=True))
        run.write_score(model, {"accuracy": accuracy}, **facts)
        for text, answer in shown:
            print(f"  {answer.label} ({answer.probability:.2f}): {text}")


if __name__ == "__main__":
    main()
