"""Sentences to trees: a parser that writes brackets, as a translator writes words.

    python examples/parse.py                 # sentences of a small grammar
    python examples/parse.py --data DIR      # DIR/parsing/wsj-sample.zip, newspaper articles

    Anna sees the dog .   ->   (S (NP XX ) (VP XX (NP XX XX ) ) XX )

As in section 6.3 of the paper; each XX is a word of the sentence. Beam search may write what is no
tree of the sentence: then the best of its hypotheses that is one counts. Chooses the epoch by the
validation set, and measures on the test set what ONNX Runtime answers.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still come, as exceptions

import keras_transformer as kt  # isort: skip  # before Keras: it silences TensorFlow's start-up
import keras

from keras_transformer import export, plots
from keras_transformer.data.sets.treebank import made_trees, read_treebank
from keras_transformer.data.sets.trees import from_brackets, tagged_words, to_brackets
from keras_transformer.export.runtime import Translator
from keras_transformer.training import task_run
from keras_transformer.training.bracket_score import bracket_score
from keras_transformer.training.recipes import learning_rate

# Of the model, tokens of a batch, and how many epochs.
SMALL = dict(num_layers=1, d_model=64, num_heads=4, d_ff=128, dropout=0.1), 1024, 15
LARGE = dict(num_layers=2, d_model=128, num_heads=4, d_ff=256, dropout=0.2), 4096, 40


def texts(trees, tags):
    """Sentences, and their lines of brackets."""
    sentences = [" ".join(word for word, _ in tagged_words(tree)) for tree in trees]
    return sentences, [to_brackets(tree, tags) for tree in trees]


def tree_of(line, words=None):
    """The tree of a line; `None` if it is none, or none of these words."""
    try:
        return from_brackets(line, words)
    except ValueError:
        return None


def best_trees(gold, results):
    """Of each sentence the best hypothesis that is a tree of its words, or `None`."""
    found = []
    for tree, result in zip(gold, results, strict=True):
        words = tagged_words(tree)
        trees = (tree_of(line, words) for line in result.texts)
        found.append(next(filter(None, trees), None))
    return found


def scores(gold, results):
    """What the beam search gives as it is, and what its best hypotheses that fit give."""
    first = [result.texts[0] if result.texts else "" for result in results]
    fits = [tree_of(line, tagged_words(tree)) for tree, line in zip(gold, first, strict=True)]
    best = bracket_score(gold, best_trees(gold, results))
    return {
        "f1": best["f1"],
        "precision": best["precision"],
        "recall": best["recall"],
        "f1 of the first hypothesis": bracket_score(gold, fits)["f1"],
        "well-formed": sum(tree_of(line) is not None for line in first) / len(first),
        "well-formed, as many words": sum(tree is not None for tree in fits) / len(first),
        "with a tree among the hypotheses": best["trees"],
    }


def flat_score(gold):
    """F1 of one bracket around all words: what is to be had for nothing."""
    lines = (f"(S {'XX ' * len(tagged_words(tree))})" for tree in gold)
    trees = [from_brackets(line, tagged_words(t)) for line, t in zip(lines, gold, strict=True)]
    return bracket_score(gold, trees)["f1"]


def main(argv=None):
    parser = task_run.make_parser("parse", __doc__, epochs=None)
    parser.add_argument("--beam-width", type=int, default=8, help="default: 8")
    parser.add_argument("--tags", action="store_true", help="write a word's tag in place of XX")
    args = task_run.parse(parser, argv)
    sizes, tokens_per_batch, epochs = LARGE if args.data else SMALL
    args.epochs = args.epochs or epochs
    with task_run.TaskRun(args) as run:
        if args.data:
            sets = read_treebank(args.data / "parsing" / "wsj-sample.zip", args.limit)
        else:
            sets = made_trees(args.limit)
        train, valid, test = (texts(trees, args.tags) for trees in sets)
        words = kt.Tokenizer.train(train[0], 3000, hard_vocab_limit=False)
        brackets = kt.Tokenizer.train(
            train[1], 100, model_type="word", byte_fallback=False, hard_vocab_limit=False
        )
        batches = kt.translation_batches(
            *train, words, tokens_per_batch, target_tokenizer=brackets, seed=args.seed
        )
        measured = kt.translation_batches(
            *valid, words, 8192, target_tokenizer=brackets, shuffle=False
        )
        print(f"training: {batches.batches.report}\nvalidation: {measured.batches.report}")
        model = kt.Transformer(words.vocab_size, target_vocab_size=brackets.vocab_size, **sizes)
        updates = args.epochs * len(batches)
        rate = learning_rate(peak=0.002, warmup_steps=200, anneal=True, updates=updates)
        model.compile(
            keras.optimizers.Adam(rate, 0.9, 0.98, 1e-9, global_clipnorm=1.0),
            loss=kt.SequenceCrossentropy(label_smoothing=0.1),
        )
        run.fit(
            model, batches, validation_data=measured, epochs=args.epochs, best="val_loss",
            shuffle=False,  # the batches shuffle themselves
        )  # fmt: skip

        search = kt.BeamSearch(args.beam_width, length_penalty=0.6)
        longest = 2 * max(len(brackets.encode(line)) for line in train[1])
        export.export_onnx(
            model, run.path / "onnx", words, search, target_tokenizer=brackets, max_length=longest
        )
        results = Translator(run.path / "onnx").n_best(test[0])
        trees = best_trees(sets.test, results)
        shown = [i for i, tree in enumerate(trees) if tree and len(tagged_words(tree)) <= 12][:4]
        for i in shown:
            print(f"  {trees[i]}")
        if shown:
            pair = [sets.test[shown[-1]], trees[shown[-1]]]
            run.draw("trees.png", plots.plot_trees(pair, ["by people", "by the model"]))
        run.write_score(
            model,
            scores(sets.test, results),
            data="WSJ sample" if args.data else "sentences of a small grammar",
            baseline={"f1 of one bracket a sentence": flat_score(sets.test)},
        )


if __name__ == "__main__":
    main(sys.argv[1:])
