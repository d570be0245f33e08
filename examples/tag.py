"""Tags each word of a sentence with its part of speech, such as "noun" or "verb".

    python examples/tag.py                 # sentences of a small grammar
    python examples/tag.py --data DIR      # DIR/parsing/wsj-sample.zip, newspaper articles

The model reads pieces of words. Two convolutions combine neighbouring pieces, such as a word's
ending, and an encoder attends to the whole sentence. The output at a word's first piece is its tag.
The validation set selects the epoch. ONNX Runtime predicts the tags of the test set.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

from collections import Counter

import keras
from support import task_run
from support.baselines import word_tags
from support.plots import plot_confusion
from support.recipes import learning_rate
from support.sets.tagged_sentences import usual_tags
from support.sets.treebank import made_trees, read_treebank
from support.sets.trees import tagged_words

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

# Arguments of the model and of the batches, and epochs.
SMALL = dict(num_layers=1, d_model=64, num_heads=4, d_ff=128, dropout=0.1), {}, 15
LARGE = (
    dict(num_layers=2, d_model=128, num_heads=4, d_ff=256, dropout=0.2),
    # Each epoch splits some words into other pieces, so that the model learns parts of rare words:
    # one word in 26 with 1.0. With 0.2 it is one in three, and common words are learned later.
    dict(sampling_alpha=1.0),
    15,
)


def words_and_tags(trees):
    """Returns words and tags, each with a list per sentence."""
    pairs = [tagged_words(tree) for tree in trees]
    words = [[word for word, _ in sentence] for sentence in pairs]
    return words, [[tag for _, tag in sentence] for sentence in pairs]


def flat(lists):
    return [item for items in lists for item in items]


def tagger(vocab_size, tags, *, num_layers, d_model, num_heads, d_ff, dropout):
    """Makes a model from ids (B, S) to tag logits of each piece (B, S, tags)."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = kt.TokenEmbedding(vocab_size, d_model)(source_ids)  # (B, S, D)
    x = keras.layers.Dropout(dropout)(kt.SinusoidalPositionEncoding()(x))
    for width in (5, 3):
        near = kt.MaskedConv1D(d_model, width, activation="relu")(x)
        near = keras.layers.Dropout(dropout)(near)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, near]))
    for _ in range(num_layers):
        x = kt.EncoderBlock(num_heads, d_ff, dropout)(x)
    x = keras.layers.Dropout(dropout)(x)
    return kt.Model(source_ids, keras.layers.Dense(tags)(x))


def share(found, true):
    return sum(a == b for a, b in zip(found, true, strict=True)) / len(true)


def main(argv=None):
    parser = task_run.make_parser("tag", __doc__, epochs=None)
    args = task_run.parse(parser, argv)
    sizes, drawn, epochs = LARGE if args.data else SMALL
    args.epochs = args.epochs or epochs
    with task_run.TaskRun(args) as run:
        if args.data:
            sets = read_treebank(args.data / "parsing" / "wsj-sample.zip", args.limit)
        else:
            sets = made_trees(args.limit)
        train, valid, test = map(words_and_tags, sets)
        tokenizer = kt.Tokenizer.train(map(" ".join, train[0]), 3000, hard_vocab_limit=False)
        names = sorted({*flat(train[1]), *flat(valid[1]), *flat(test[1])})
        batches = kt.tagging_batches(
            *train, tokenizer, 1024, label_names=names, seed=args.seed, **drawn
        )
        measured = kt.tagging_batches(*valid, tokenizer, label_names=names, shuffle=False)
        print(f"training: {batches.batches.report}\nvalidation: {measured.batches.report}")

        model = tagger(tokenizer.vocab_size, len(names), **sizes)
        updates = args.epochs * len(batches)
        rate = learning_rate(peak=0.002, warmup_steps=100, anneal=True, updates=updates)
        model.compile(
            keras.optimizers.Adam(rate, global_clipnorm=1.0),
            loss=kt.SequenceCrossentropy(label_smoothing=0.1, pad_id=-1),
            metrics=[kt.TokenAccuracy(pad_id=-1, name="accuracy")],
        )
        run.fit(
            model,
            batches,
            validation_data=measured,
            epochs=args.epochs,
            best="val_accuracy",
        )

        head = export.TokenClassification(names)
        export.export_onnx(model, run.path / "onnx", tokenizer, head=head)
        results = Predictor(run.path / "onnx").predict(test[0])
        found, true = flat(result.tags for result in results), flat(test[1])
        known = {*flat(train[0])}
        new = [i for i, word in enumerate(flat(test[0])) if word not in known]
        scores = {"accuracy": share(found, true)}
        if new:
            scores["of new words"] = share([found[i] for i in new], [true[i] for i in new])
        often = [
            name for name, _ in Counter(true).most_common(12)
        ]  # the maximum number for which the figure has room
        both = [(a, b) for a, b in zip(true, found, strict=True) if a in often and b in often]
        run.draw("confusion.png", plot_confusion(*zip(*both, strict=True), often))
        run.write_score(
            model,
            scores,
            data="WSJ sample" if args.data else "sentences of a small grammar",
            baseline={
                "usual tag of each word": share(flat(usual_tags(*train, test[0])), true),
                "linear tagger": share(flat(word_tags(*train, test[0])), true),
            },
        )
        for result in results[:5]:
            print(" ", " ".join(map("/".join, zip(result.words, result.tags, strict=True))))


if __name__ == "__main__":
    main(sys.argv[1:])
