"""Trains a character language model on plays by Shakespeare, and continues given lines.

    python examples/language_model.py                 # sentences of a small grammar
    python examples/language_model.py --data DIR      # DIR/lm/tinyshakespeare.txt.gz

The model is a decoder: each position attends to the previous ones and predicts the next character.
The last tenth of the text is the test set. An epoch is 200 updates. With the real text, sizes,
windows and updates follow nanoGPT's setting for a CPU.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import tensorflow as tf
from support import task_run
from support.baselines import backoff_nats
from support.recipes import learning_rate
from support.sets.treebank import made_trees
from support.sets.trees import tagged_words

import keras_transformer as kt
from keras_transformer import export, plots
from keras_transformer.export.runtime import Generator
from keras_transformer.text.corpora import read_lines

UPDATES = 200  # per epoch
COUNTED = 4  # characters before one that the baseline counts: the best on the validation part
WINDOW, WINDOWS = 64, 12  # characters per window, windows per batch
SMALL = dict(num_layers=2, d_model=64, num_heads=4, d_ff=128)
NANO = dict(num_layers=4, d_model=128, num_heads=4, d_ff=512)


def read_text(data, limit):
    """Returns the whole text, or its first `limit` lines, and a few prompts."""
    if data:
        lines = read_lines(data / "lm" / "tinyshakespeare.txt.gz")[:limit]
        return "\n".join(lines) + "\n", ["ROMEO:", "To be, or not to be", "My lord, "]
    sentences = (tagged_words(tree) for tree in made_trees(limit).train)
    lines = [" ".join(word for word, _ in sentence) for sentence in sentences]
    return "\n".join(lines) + "\n", ["the old teacher", "does Anna", "two "]


def parts(text, seed):
    """Returns the tokenizer, and batches for training, validation and test."""
    tokenizer = kt.Tokenizer.train([text], 400, model_type="char", byte_fallback=False)
    valid, test = len(text) * 88 // 100, len(text) * 90 // 100

    def batches(part, windows, **options):
        length = 1 + WINDOW  # the begin token comes first
        return kt.language_model_batches(
            [part], tokenizer, windows * length, window=length, static_shapes=True, **options
        )

    train = batches(text[:valid], WINDOWS, seed=seed)
    # In the order of the text, so that each character is predicted once.
    measured = (batches(part, 64, shuffle=False) for part in (text[valid:test], text[test:]))
    return tokenizer, train, *measured


def counted_nats(text):
    """Returns the nats a character of counts that look at up to `COUNTED` characters before."""
    test = len(text) * 90 // 100

    def contexts(characters, place):
        return [characters[max(0, place - length) : place] for length in range(COUNTED + 1)]

    return backoff_nats([text[:test]], [text[test:]], contexts)


def without_first(ids, labels):
    """Masks out the first character of a window (label 0), because no other precedes it."""
    return ids, tf.pad(labels[:, 1:], [[0, 0], [1, 0]])


def main(argv=None):
    parser = task_run.make_parser("language_model", __doc__, epochs=None)
    parser.add_argument("--dropout", type=float, default=0.0, help="default: 0")
    args = task_run.parse(parser, argv)
    args.epochs = args.epochs or (10 if args.data else 3)
    with task_run.TaskRun(args) as run:
        text, prompts = read_text(args.data, args.limit)
        tokenizer, train, valid, test = parts(text, args.seed)
        print(f"training: {train.batches.report}")
        model = kt.CausalTransformer(
            tokenizer.vocab_size,
            **(NANO if args.data else SMALL),
            dropout=args.dropout,
            norm_first=True,
            activation="gelu",
            positions="rotary",
        )
        updates = min(UPDATES, train.batches.batches_per_epoch)
        total = args.epochs * updates
        rate = learning_rate(
            peak=0.01, warmup_steps=min(100, total // 4 + 1), anneal=True, updates=total
        )
        model.compile(
            keras.optimizers.Muon(  # for matrices; AdamW for vectors and the embedding
                rate,
                adam_lr_ratio=0.2,
                weight_decay=0.1,
                adam_weight_decay=0.1,
                adam_beta_2=0.99,
                global_clipnorm=1.0,
            ),
            loss=kt.SequenceCrossentropy(),
            jit_compile=True,  # one shape: XLA compiles once, which saves a third of the time
        )
        history = run.fit(
            model,
            train.map(without_first).repeat(),
            validation_data=valid.map(without_first),
            epochs=args.epochs,
            steps_per_epoch=updates,
        )
        run.draw("learning.png", plots.plot_learning_curve(history.history))

        search = kt.Sampling(temperature=0.8)
        longest = WINDOW - max(map(len, prompts))  # positions after a window are not trained
        export.export_onnx(model, run.path / "onnx", tokenizer, search, max_length=longest)
        loss = model.evaluate(test.map(without_first), verbose=0)
        run.write_score(
            model,
            {"loss in nats a character": loss},
            data="tiny Shakespeare" if args.data else "sentences of a small grammar",
            baseline={"counts with back-off": counted_nats(text)},
            published={"nanoGPT, 2,000 updates on a CPU": 1.88} if args.data else None,
        )
        for text in Generator(run.path / "onnx").n_best(prompts, seed=args.seed):
            print(f"----\n{text.full_text}")


if __name__ == "__main__":
    main(sys.argv[1:])
