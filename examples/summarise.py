"""Summarises paragraphs in one line each.

    python examples/summarise.py                # made calendars, about two minutes
    python examples/summarise.py --data DIR     # Debian's packages, from DIR/debian/Translation-en
    python examples/summarise.py --data DIR --start pt-en    # from a published translator

The model is the translator of the paper, from long text to short. It has no pointer mechanism, so
it spells every word in pieces. `--start` trains a translator that already writes English and can
copy.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
from support import task_run
from support.plots import plot_matrix
from support.recipes import learning_rate
from support.scores.rouge import lead, rouge
from support.sets.calendar import calendar_summaries
from support.sets.debian import read_synopses

import keras_transformer as kt
from keras_transformer import export, plots
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import bergamot
from keras_transformer.special_ids import BEGIN_ID, END_ID


def parse_arguments(argv):
    parser = task_run.make_parser("summarise", __doc__, epochs=None)
    add = parser.add_argument
    add("--vocab-size", type=int, default=8000, help="pieces of a new model; default: 8000")
    add("--num-layers", type=int, default=2, help="blocks per stack of a new model; default: 2")
    add("--d-model", type=int, default=128, help="vector size of a new model; default: 128")
    add("--beam-width", type=int, default=4, help="default: 4")
    add("--start", type=Path, metavar="DIR", help="Firefox translation model to fine-tune")
    args = task_run.parse(parser, argv)
    args.epochs = args.epochs or (1 if args.start else 8)
    return args


def read_text(args):
    """Returns the sets and their name."""
    if not args.data:
        return calendar_summaries(3000, limit=args.limit), "made calendars"
    sets = read_synopses(args.data / "debian", limit=args.limit, longest=40)
    return sets, "Debian 12, descriptions of packages"


def begins(pairs, words=10):
    """Returns paragraphs and their first words, from paragraphs and summaries."""
    return pairs[0], [" ".join(paragraph.split()[:words]) for paragraph in pairs[0]]


def make_model(args, text):
    """Returns a model and its tokenizer: new, or from a published translator."""
    if args.start:
        model, tokenizer = bergamot.load(args.start)
        if isinstance(tokenizer, tuple):
            raise ValueError(
                f"{args.start} has two vocabularies, and the source vocabulary has no English. "
                "Use a model with one vocabulary, vocab.*.spm."
            )
        return model, tokenizer
    tokenizer = kt.Tokenizer.train(
        text.train[0] + text.train[1], args.vocab_size, hard_vocab_limit=False, model_type="bpe"
    )
    model = kt.Transformer(
        tokenizer.vocab_size,
        args.num_layers,
        args.d_model,
        4,
        2 * args.d_model,
        dropout=0.1,
        norm_first=True,
    )
    return model, tokenizer


def train(args, run, text, model, tokenizer):
    stages = {"summaries": (args.epochs, lambda pairs: pairs)}
    if not args.start:
        # Train first on copies of the beginnings, so that the model attends to the paragraph.
        stages = {"beginnings": (1, begins)} | stages
    for name, (epochs, pairs_of) in stages.items():
        batches = kt.translation_batches(
            *pairs_of(text.train),
            tokenizer,
            seed=args.seed,
            tokens_per_batch=2048 if args.start else 4096,
        )
        valid = kt.translation_batches(*pairs_of(text.valid), tokenizer, shuffle=False)
        print(f"{name}: {batches.batches.report}\nvalidation: {valid.batches.report}")
        updates = epochs * len(batches)
        rate = learning_rate(
            peak=0.0002 if args.start else 0.002,  # preserves earlier training
            warmup_steps=min(300, updates // 4 + 1),
            anneal=True,
            updates=updates,
        )
        model.compile(
            keras.optimizers.Adam(rate, 0.9, 0.98, 1e-9, global_clipnorm=1.0),
            loss=kt.SequenceCrossentropy(label_smoothing=0.1),
            weighted_metrics=[kt.Perplexity()],
        )
        run.fit(
            model,
            batches,
            validation_data=valid,
            epochs=epochs,
            best="val_perplexity",
        )


def draw_attention(model, tokenizer, rows, pieces=30):
    """Plots the attention of each written piece to the pieces of a paragraph.

    Among rows with a non-empty line, it takes the paragraph of about `pieces` pieces.
    """
    rows = [row for row in rows if row[2]] or rows
    pairs = [tokenizer.encode([row[0], row[2]]) for row in rows]
    source, written = min(pairs, key=lambda pair: abs(len(pair[0]) - pieces))
    source, target = [*source, END_ID], [BEGIN_ID, *written]
    weights = plots.attention_maps(model, source, target)["cross"][-1].mean(axis=0)  # (T, S)
    labels = (plots.token_labels(tokenizer, ids) for ids in ([*written, END_ID], source))
    return plot_matrix(weights, *labels, "weight, mean of heads")


def main(argv=None):
    args = parse_arguments(argv)
    with task_run.TaskRun(args) as run:
        text, name = read_text(args)
        model, tokenizer = make_model(args, text)
        train(args, run, text, model, tokenizer)

        search = kt.BeamSearch(args.beam_width, 1.0, allow_unknown=False)
        export.export_onnx(model, run.path / "onnx", tokenizer, search)
        texts, summaries = text.tests["test"]
        found = Translator(run.path / "onnx").translate(texts)
        some = list(zip(texts, summaries, found, strict=True))[:200]
        for paragraph, summary, written in some[:5]:
            print(f"{paragraph}\n  reference: {summary}\n  written:   {written}")
        run.write_score(
            model,
            rouge(found, summaries),
            data=f"{name}, from a translator" if args.start else name,
            texts=len(texts),
            baseline={
                f"{measure} of lead-{count}": value
                for count in (1, 3)
                for measure, value in rouge([lead(t, count) for t in texts], summaries).items()
            },
        )
        run.draw("summarise.png", draw_attention(model, tokenizer, some))


if __name__ == "__main__":
    main()
