"""Parses sentences into trees, by translation of words into brackets.

    python examples/parse.py                 # sentences of a small grammar
    python examples/parse.py --data DIR      # DIR/parsing/wsj-sample.zip, newspaper articles

    Anna sees the dog .   ->   (S (NP 1 NNP )NP (VP 2 VBZ (NP 3 DT 4 NN )NP )VP 5 . )S

This follows section 6.3 of the paper. Each word is written as its number and its tag. A grammar
restricts the beam search to trees of the sentence; a second score is without it. The validation set
selects the epoch. ONNX Runtime writes the trees of the test set.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
from support import task_run
from support.bracket_grammar import BracketGrammar
from support.plots import plot_trees
from support.recipes import learning_rate
from support.scores.bracket_score import bracket_score
from support.sets.treebank import made_trees, read_treebank
from support.sets.trees import from_brackets, phrases, tagged_words, to_brackets
from support.word_numbers import WordNumbers

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator

# Model arguments, tokens per batch, epochs, words of the shortest phrase to train on.
SMALL = dict(num_layers=1, d_model=64, num_heads=4, d_ff=128, dropout=0.1), 1024, 15, None
LARGE = dict(num_layers=2, d_model=128, num_heads=4, d_ff=256, dropout=0.2), 2048, 8, 3


def texts(trees):
    """Returns sentences and their lines of brackets."""
    sentences = [" ".join(word for word, _ in tagged_words(tree)) for tree in trees]
    return sentences, [to_brackets(tree, tags=True, numbers=True) for tree in trees]


def translator(words, brackets, *, num_layers, d_model, num_heads, d_ff, dropout):
    """Makes a model from words to brackets. Two convolutions combine neighbouring pieces."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    # Source and target both contain the numbers of words, so that attention can align them.
    numbers = kt.TokenEmbedding(256, d_model)(WordNumbers(words.word_starts)(source_ids))
    x = kt.TokenEmbedding(words.vocab_size, d_model)(source_ids)  # (B, S, D)
    x = kt.SinusoidalPositionEncoding()(keras.layers.Add()([x, numbers]))
    x = keras.layers.Dropout(dropout)(x)
    for width in (5, 3):
        near = keras.layers.Dropout(dropout)(kt.MaskedConv1D(d_model, width, activation="relu")(x))
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, near]))
    for _ in range(num_layers):
        x = kt.EncoderBlock(num_heads, d_ff, dropout)(x)
    return kt.Transformer(
        brackets.vocab_size,
        num_layers,
        d_model,
        num_heads,
        d_ff,
        dropout,
        norm_first=True,
        encoder=keras.Model(source_ids, x),
    )


def tree_of(line, words=None):
    """Returns the tree of a line, or `None` if it is not a tree of these words."""
    try:
        return from_brackets(line, words)
    except ValueError:
        return None


def trees_of(gold, lines):
    """Returns the tree of each line, or `None` where it is not a tree of the sentence."""
    return [tree_of(line, tagged_words(tree)) for tree, line in zip(gold, lines, strict=True)]


def scores(gold, lines):
    """Computes bracket F1 against the gold trees, and the shares of well-formed lines."""
    found = bracket_score(gold, trees_of(gold, lines))
    return {
        **{name: found[name] for name in ("f1", "precision", "recall")},
        "well-formed": sum(tree_of(line) is not None for line in lines) / len(lines),
        "well-formed, as many words": found["trees"],
    }


def flat_score(gold):
    """Computes F1 of one bracket around all words, a trivial baseline."""
    lines = (f"(S {'XX ' * len(tagged_words(tree))})" for tree in gold)
    trees = [from_brackets(line, tagged_words(t)) for line, t in zip(lines, gold, strict=True)]
    return bracket_score(gold, trees)["f1"]


def main(argv=None):
    parser = task_run.make_parser("parse", __doc__, epochs=None)
    parser.add_argument("--beam-width", type=int, default=8, help="default: 8")
    args = task_run.parse(parser, argv)
    sizes, tokens, epochs, least = LARGE if args.data else SMALL
    args.epochs = args.epochs or epochs
    with task_run.TaskRun(args) as run:
        archive = args.data and args.data / "parsing" / "wsj-sample.zip"
        sets = read_treebank(archive, args.limit) if archive else made_trees(args.limit)
        small = [phrase for tree in sets.train for phrase in phrases(tree, least)] if least else []
        train, valid, test = map(texts, (sets.train + small, *sets[1:]))
        words = kt.Tokenizer.train(train[0], 3000, hard_vocab_limit=False)
        brackets = kt.Tokenizer.train(
            train[1], 400, model_type="word", byte_fallback=False, hard_vocab_limit=False
        )
        batches = kt.translation_batches(
            *train, words, tokens, target_tokenizer=brackets, seed=args.seed
        )
        measured = kt.translation_batches(*valid, words, target_tokenizer=brackets, shuffle=False)
        print(f"training: {batches.batches.report}\nvalidation: {measured.batches.report}")
        model = translator(words, brackets, **sizes)
        updates = args.epochs * len(batches)
        rate = learning_rate(peak=0.002, warmup_steps=200, anneal=True, updates=updates)
        adam = keras.optimizers.Adam(rate, 0.9, 0.98, 1e-9, global_clipnorm=1.0)
        model.compile(adam, loss=kt.SequenceCrossentropy(label_smoothing=0.1))
        # The batches are already shuffled.
        run.fit(
            model,
            batches,
            validation_data=measured,
            epochs=args.epochs,
            best="val_loss",
        )

        longest = 2 * max(len(brackets.encode(line)) for line in train[1])
        grammar = BracketGrammar(brackets.pieces, words.word_starts, max_length=longest)
        lines = {}
        for name, constraints in {"onnx": [grammar], "onnx-free": []}.items():
            search = kt.BeamSearch(args.beam_width, length_penalty=0.6, constraints=constraints)
            export.export_onnx(
                model,
                run.path / name,
                words,
                search,
                target_tokenizer=brackets,
                max_length=longest,
            )
            lines[name] = Translator(run.path / name).translate(test[0])
        trees, free = trees_of(sets.test, lines["onnx"]), scores(sets.test, lines["onnx-free"])
        shown = [i for i, tree in enumerate(trees) if tree and len(tagged_words(tree)) <= 12][:4]
        for i in shown:
            print(f"  {trees[i]}")
        if shown:
            pair = [sets.test[shown[-1]], trees[shown[-1]]]
            run.draw("trees.png", plot_trees(pair, ["by people", "by the model"]))
        run.write_score(
            model,
            scores(sets.test, lines["onnx"]),
            others={"without the grammar": free},
            data="WSJ sample" if args.data else "sentences of a small grammar",
            baseline={"f1 of one bracket a sentence": flat_score(sets.test)},
        )


if __name__ == "__main__":
    main(sys.argv[1:])
