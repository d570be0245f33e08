"""Embeds sentences of two languages, so that translations have similar vectors.

    python examples/similarity.py                # English and German number words: no files
    python examples/similarity.py --data DIR     # Multi30k, from DIR/multi30k

One encoder reads both languages. It trains only on pairs: in each batch, every sentence must find
its translation among all others. The score is how often it succeeds on the whole test set.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from keras import ops
from support import task_run
from support.baselines import paired_vectors
from support.plots import plot_matrix
from support.recipes import learning_rate
from support.scores.retrieval import recall_at
from support.sets.number_words import number_words
from support.sets.text_sets import read_sets

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

TEMPERATURE = 0.05  # cosines lie in [-1, 1]; the softmax needs larger differences
WHOLE_SET = dict(tokens_per_batch=10**6, bucket_boundaries=[256], shuffle=False)  # one batch


def parse_arguments(argv):
    parser = task_run.make_parser("similarity", __doc__, epochs=6)
    add = parser.add_argument
    add("--vocab-size", type=int, default=8000, help="maximum vocabulary size; default: 8000")
    add("--num-layers", type=int, default=2, help="default: 2")
    add("--d-model", type=int, default=128, help="size of a vector; default: 128")
    add("--dropout", type=float, default=0.2, help="default: 0.2")
    return task_run.parse(parser, argv)


def read_text(args):
    """Returns the `TextSets`, and the name of the test set."""
    if not args.data:
        return number_words(count=8000, limit=args.limit), "test"
    return read_sets(args.data / "multi30k", limit=args.limit), "test_2016_flickr"


def towers(args, vocab_size):
    """Makes a sentence encoder, and a model that scores each pair of a batch with it."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    vectors = kt.TransformerEncoder(
        vocab_size, args.num_layers, args.d_model, 4, 2 * args.d_model, dropout=args.dropout
    )(source_ids)
    mean = kt.SequencePooling()(vectors)
    embedder = kt.Model(source_ids, keras.layers.UnitNormalization()(mean))

    first_ids = keras.Input((None,), dtype="int32", name="first_ids")
    second_ids = keras.Input((None,), dtype="int32", name="second_ids")
    cosines = ops.matmul(embedder(first_ids), ops.transpose(embedder(second_ids)))  # (B, B)
    inputs = {"first_ids": first_ids, "second_ids": second_ids}
    return embedder, kt.Model(inputs, cosines / TEMPERATURE)


def train(args, run, text, tokenizer):
    batches = kt.pair_batches(*text.train, tokenizer, tokens_per_batch=4096, seed=args.seed)
    # The validation set is one batch, so its recall is over the whole set.
    valid = kt.pair_batches(*text.valid, tokenizer, **WHOLE_SET)
    print(f"training: {batches.batches.report}\nvalidation: {valid.batches.report}")
    embedder, model = towers(args, tokenizer.vocab_size)
    updates = args.epochs * len(batches)
    rate = learning_rate(
        peak=0.002, warmup_steps=min(200, updates // 4 + 1), anneal=True, updates=updates
    )
    model.compile(
        keras.optimizers.Adam(rate, 0.9, 0.98, 1e-9, global_clipnorm=1.0),
        loss=kt.PairCrossentropy(),
        weighted_metrics=[kt.TokenAccuracy(pad_id=-1, name="recall")],
    )
    run.fit(model, batches, validation_data=valid, epochs=args.epochs, best="val_recall")
    return embedder


def vectors(predictor, lines):
    """Returns a unit vector for each line, (N, D). Their dot products are cosines."""
    return np.stack([result.vector for result in predictor.predict(lines)])


def measure(scores):
    """Computes recall@1 and @10 from the first language to the second, and back."""
    return {
        f"recall@{k} {way}": recall_at(across, k)
        for k in (1, 10)
        for way, across in (("en-de", scores), ("de-en", scores.T))
    }


def shared_pieces(tokenizer, english, german):
    """Measures an untrained baseline: the cosine of two sentences' counts of pieces."""
    counts = np.zeros((2, len(english), tokenizer.vocab_size), "float32")
    for side, lines in zip(counts, (english, german), strict=True):
        for row, ids in zip(side, tokenizer.encode(lines), strict=True):
            np.add.at(row, ids, 1)
    first, second = counts / np.linalg.norm(counts, axis=-1, keepdims=True)
    return measure(first @ second.T)


def main(argv=None):
    args = parse_arguments(argv)
    with task_run.TaskRun(args) as run:
        text, test_name = read_text(args)
        english, german = text.tests[test_name]
        tokenizer = kt.Tokenizer.train(
            text.train[0] + text.train[1], args.vocab_size, hard_vocab_limit=False
        )
        embedder = train(args, run, text, tokenizer)

        head = export.FeatureExtraction()
        export.export_onnx(embedder, run.path / "onnx", tokenizer, head=head)
        predictor = Predictor(run.path / "onnx")
        first, second = vectors(predictor, english), vectors(predictor, german)
        scores = first @ second.T
        some = slice(24)
        texts = english[some], german[some]
        figure = plot_matrix(scores[some, some], *texts, "cosine similarity")
        run.draw("similarity.png", figure)
        for line, row in zip(english[:5], scores, strict=False):
            found = german[row.argmax()]
            print(f"{line}\n  -> {found}  ({row.max():.2f})")
        first, second = paired_vectors(text.train, (english, german), seed=args.seed)
        run.write_score(
            embedder,
            measure(scores),
            data=f"Multi30k, {test_name}" if args.data else "number words",
            pairs=len(english),
            baseline={
                f"{kind}, {name}": value
                for kind, found in (
                    ("shared pieces", shared_pieces(tokenizer, english, german)),
                    ("latent semantic indexing", measure(first @ second.T)),
                )
                for name, value in found.items()
                if "@1 " in name
            },
        )


if __name__ == "__main__":
    main()
