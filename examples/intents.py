"""Predicts the intent of spoken requests, and slots such as place or time, with one model.

    python examples/intents.py                          # requests of a small grammar
    python examples/intents.py --data DIR --set snips   # DIR/slots/snips.train.gz, ...
    python examples/intents.py --data DIR --set atis    # DIR/slots/atis.train.gz, ...

One encoder has two heads. The class token gives the intent; the first piece of each word gives the
word's slot. Both outputs are in one ONNX file. The validation set selects the epoch. ONNX Runtime
predicts the intents and slots of the test set.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
from support import task_run
from support.baselines import text_classes, word_tags
from support.plots import plot_outcomes
from support.recipes import learning_rate
from support.scores.entities import entity_outcomes, entity_scores
from support.sets import tagged_sentences

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

# Name, pieces, alpha of subword sampling, epochs, and scores of Goo et al. (2018), also without
# pretraining. No setting was chosen on a test set.
SETS = {
    "made": ("requests of a small grammar", 400, None, 12, None),
    "snips": ("SNIPS", 4000, 0.5, 12, {"slot f1": 0.888, "intent": 0.970}),
    "atis": ("ATIS", 1000, 0.5, 25, {"slot f1": 0.952, "intent": 0.941}),
}
SMALL = dict(num_layers=1, d_model=64, dropout=0.1)
LARGE = dict(num_layers=2, d_model=128, dropout=0.25)
HEADS = ("label", "tags")


def parse_arguments(argv):
    parser = task_run.make_parser("intents", __doc__, epochs=None)
    parser.add_argument("--set", choices=[*SETS][1:], help="data set; needs --data")
    args = task_run.parse(parser, argv)
    if bool(args.data) != bool(args.set):
        parser.error("--data and --set go together")
    name, pieces, alpha, epochs, published = SETS[args.set or "made"]
    args.epochs = args.epochs or epochs
    return args, name, pieces, alpha, published


def two_headed(vocab_size, tags, labels, *, num_layers, d_model, dropout):
    """Makes a model from ids (B, S) to intent logits (B, labels) and slot logits (B, S, tags)."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = kt.TokenEmbedding(vocab_size, d_model)(source_ids)  # (B, S, D)
    x = keras.layers.Dropout(dropout)(x)
    for width in (5, 3):
        near = kt.MaskedConv1D(d_model, width, activation="relu")(x)
        near = keras.layers.Dropout(dropout)(near)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, near]))
    x = kt.SinusoidalPositionEncoding()(kt.ClassToken()(x))  # (B, S + 1, D)
    for _ in range(num_layers):
        x = kt.EncoderBlock(4, 2 * d_model, dropout)(x)
    x = keras.layers.Dropout(dropout)(x)
    outputs = {
        "label": keras.layers.Dense(labels)(x[:, 0]),
        "tags": keras.layers.Dense(tags)(x[:, 1:]),
    }
    return kt.Model(source_ids, outputs)


def share(found, true):
    return sum(a == b for a, b in zip(found, true, strict=True)) / len(true)


def main(argv=None):
    args, name, pieces, alpha, published = parse_arguments(argv)
    with task_run.TaskRun(args) as run:
        if args.data:
            sets = tagged_sentences.read_requests(args.data / "slots", args.set, args.limit)
        else:
            sets = tagged_sentences.made_requests(args.limit)
        train, valid, test = sets
        # Fold case, because speech has no capital letters.
        options = dict(normalization="nmt_nfkc_cf", hard_vocab_limit=False)
        tokenizer = kt.Tokenizer.train(map(" ".join, train.words), pieces, **options)
        tags = sorted({tag for some in sets for marks in some.tags for tag in marks})
        intents = sorted({label for some in sets for label in some.labels})
        names = dict(label_names=tags, sentence_label_names=intents)
        batches, measured = (
            kt.tagging_batches(
                *some[:2], tokenizer, 1024, sentence_labels=some.labels, **names, **drawn
            )
            for some, drawn in (
                (train, dict(seed=args.seed, sampling_alpha=alpha)),
                (valid, dict(shuffle=False)),
            )
        )
        print(f"training: {batches.batches.report}\nvalidation: {measured.batches.report}")
        sizes = LARGE if args.data else SMALL
        model = two_headed(tokenizer.vocab_size, len(tags), len(intents), **sizes)
        updates = args.epochs * len(batches)
        rate = learning_rate(peak=0.002, warmup_steps=100, anneal=True, updates=updates)
        model.compile(
            keras.optimizers.Adam(rate, global_clipnorm=1.0),
            loss={name: kt.SequenceCrossentropy(0.1, pad_id=-1) for name in HEADS},
            weighted_metrics={name: kt.TokenAccuracy(pad_id=-1, name="accuracy") for name in HEADS},
        )
        best = dict(validation_data=measured, best="val_tags_accuracy")
        run.fit(model, batches, epochs=args.epochs, **best)

        heads = export.Classification(intents), export.TokenClassification(tags, bio=True)
        head = export.Heads(**dict(zip(HEADS, heads, strict=True)))
        export.export_onnx(model, run.path / "onnx", tokenizer, head=head)
        found = [answer.results for answer in Predictor(run.path / "onnx").predict(test.words)]
        labels = [results["label"].label for results in found]
        slots = [list(results["tags"].tags) for results in found]
        answers, wanted = zip(labels, slots, strict=True), zip(test.labels, test.tags, strict=True)
        score = {
            "slot f1": entity_scores(slots, test.tags)["f1"],
            "intent": share(labels, test.labels),
            "both right": share(list(answers), list(wanted)),
        }
        usual = max(intents, key=train.labels.count)
        usual_slots = tagged_sentences.usual_tags(*train[:2], test.words)
        linear = text_classes(
            [*map(" ".join, train.words)], train.labels, [*map(" ".join, test.words)]
        )
        linear_slots = word_tags(*train[:2], test.words)
        baseline = {
            "usual slot of each word, slot f1": entity_scores(usual_slots, test.tags)["f1"],
            "linear tagger, slot f1": entity_scores(linear_slots, test.tags)["f1"],
            f"always {usual!r}, intent": test.labels.count(usual) / len(labels),
            "tf-idf and linear SVM, intent": share(linear, test.labels),
        }
        run.draw("slots.png", plot_outcomes(entity_outcomes(slots, test.tags), most=20))
        facts = dict(data=name, baseline=baseline, published=published)
        run.write_score(model, score, **facts)
        for results in found[:5]:
            print(f"  {results['label'].label}: {results['tags'].line()}")


if __name__ == "__main__":
    main()
