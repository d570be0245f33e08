"""Finds persons, places and organizations in English and German texts, with one model.

    python examples/entities.py                 # sentences of a small grammar
    python examples/entities.py --data DIR      # WikiANN in DIR/ner
    python examples/entities.py --data DIR --pretrained FOLDER    # starts from a BERT

As in `tag.py`, the model reads pieces of words. Convolutions combine each piece with its
neighbours, and an encoder attends to the whole sentence. The tag at the first piece of a word says
whether an entity begins (B-PER), continues (I-PER) or is absent (O). The model is not pretrained,
or it is the encoder of a BERT in Hugging Face's layout, such as MiniLM. The validation sets select
the epoch. ONNX Runtime predicts the tags of the test sets.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
from support.baselines import word_tags
from support.plots import plot_outcomes
from support.recipes import learning_rate
from support.scores.entities import entity_outcomes, entity_scores
from support.sets.tagged_sentences import made_entities, read_entities, usual_tags
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

# Model arguments, pieces, tokens per batch, alpha of subword sampling, peak rate, epochs.
SMALL = dict(num_layers=1, d_model=64, dropout=0.1), 500, 1024, None, 2e-3, 10
LARGE = dict(num_layers=2, d_model=128, dropout=0.2), 8000, 2048, 1.0, 2e-3, 8
PRETRAINED = None, None, 1024, None, 3e-4, 1


def pretrained_tagger(folder, tags):
    """Returns a BERT with a new head, like `tagger`, and its tokenizer."""
    encoder, tokenizer = kt.importers.bert.load(folder)
    encoder.get_layer("token_embedding").trainable = False  # a large part of all weights
    x = keras.layers.Dropout(0.1)(encoder.output)
    return kt.Model(encoder.input, keras.layers.Dense(tags)(x)), tokenizer


def tagger(vocab_size, tags, *, num_layers, d_model, dropout):
    """Makes a model from ids (B, S) to tag logits of each piece (B, S, tags)."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = kt.TokenEmbedding(vocab_size, d_model)(source_ids)  # (B, S, D)
    x = keras.layers.Dropout(dropout)(kt.SinusoidalPositionEncoding()(x))
    for width in (5, 3):
        near = kt.MaskedConv1D(d_model, width, activation="relu")(x)
        near = keras.layers.Dropout(dropout)(near)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, near]))
    for _ in range(num_layers):
        x = kt.EncoderBlock(4, 2 * d_model, dropout)(x)
    x = keras.layers.Dropout(dropout)(x)
    return kt.Model(source_ids, keras.layers.Dense(tags)(x))


def joined(some):
    """Returns the words and tags of all languages."""
    sets = some.values()
    return [words for one in sets for words in one.words], [t for one in sets for t in one.tags]


def main(argv=None):
    parser = make_parser("entities", __doc__, epochs=None)
    parser.add_argument("--pretrained", type=Path, metavar="FOLDER", help="of a BERT to fine-tune")
    args = parse(parser, argv)
    settings = PRETRAINED if args.pretrained else LARGE if args.data else SMALL
    sizes, pieces, tokens, alpha, peak, epochs = settings
    args.epochs = args.epochs or epochs
    with TaskRun(args) as run:
        if args.data:
            sets = read_entities(args.data / "ner", limit=args.limit)
        else:
            sets = made_entities(args.limit)
        train, valid = joined(sets["train"]), joined(sets["valid"])
        names = sorted({tag for tags in train[1] for tag in tags})
        if args.pretrained:
            model, tokenizer = pretrained_tagger(args.pretrained, len(names))
        else:
            # Keep capital letters, because names have them.
            tokenizer = kt.Tokenizer.train(map(" ".join, train[0]), pieces, hard_vocab_limit=False)
            model = tagger(tokenizer.vocab_size, len(names), **sizes)
        batches = kt.tagging_batches(
            *train, tokenizer, tokens, label_names=names, sampling_alpha=alpha, seed=args.seed
        )
        measured = kt.tagging_batches(*valid, tokenizer, label_names=names, shuffle=False)
        print(f"training: {batches.batches.report}\nvalidation: {measured.batches.report}")
        updates = args.epochs * len(batches)
        rate = learning_rate(peak=peak, warmup_steps=100, anneal=True, updates=updates)
        model.compile(
            keras.optimizers.Adam(rate, global_clipnorm=1.0),
            loss=kt.SequenceCrossentropy(label_smoothing=0.1, pad_id=-1),
            metrics=[kt.TokenAccuracy(pad_id=-1, name="accuracy")],
        )
        best = dict(validation_data=measured, best="val_accuracy")
        run.fit(model, batches, epochs=args.epochs, **best)

        head = export.TokenClassification(names, bio=True)
        longest = 512 if args.pretrained else 2048  # positions of a BERT are learned
        options = dict(head=head, max_source_length=longest)
        export.export_onnx(model, run.path / "onnx", tokenizer, **options)
        predictor, score, baseline, shown = Predictor(run.path / "onnx"), {}, {}, []
        both, seen, others = ([], []), {*map(tuple, train[0])}, {}
        for language, test in sets["test"].items():
            results = predictor.predict(test.words)
            found = [list(result.tags) for result in results]
            score[f"{language} f1"] = entity_scores(found, test.tags)["f1"]
            for name, method in (("usual tag", usual_tags), ("linear tagger", word_tags)):
                simple = method(*train, test.words)
                baseline[f"{name}, {language} f1"] = entity_scores(simple, test.tags)["f1"]
            new = [i for i, words in enumerate(test.words) if tuple(words) not in seen]
            others[f"the {len(new)} sentences not in train, {language}"] = {
                f"{language} f1": entity_scores(
                    [found[i] for i in new], [test.tags[i] for i in new]
                )["f1"]
            }
            both[0].extend(found)
            both[1].extend(test.tags)
            shown += results[:3]
        score = {"f1": entity_scores(*both)["f1"], **score}
        run.draw("errors.png", plot_outcomes(entity_outcomes(*both)))
        data = "WikiANN, English and German" if args.data else "sentences of a small grammar"
        run.write_score(model, score, others, data=data, baseline=baseline)
        for result in shown:
            print(f"  {result.line()}")


if __name__ == "__main__":
    main()
