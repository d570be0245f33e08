"""Finds answers to questions in a passage: the model predicts where an answer begins and ends.

    python examples/answer.py                    # some minutes
    python examples/answer.py --passages 500     # a first look, too short to learn it

The data is synthetic: calendars of who does what, where and when. Most questions name two facts,
and each fact occurs in two sentences of the passage. Questions write dates in another form.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from support import task_run
from support.plots import plot_matrices
from support.recipes import learning_rate
from support.sets.calendar import calendar_questions, word_overlap_answers

import keras_transformer as kt
from keras_transformer import export, plots
from keras_transformer.export.runtime import Predictor
from keras_transformer.special_ids import END_ID

OUTPUTS = "start", "end"


def parse_arguments(argv):
    parser = task_run.make_parser("answer", __doc__, epochs=2, data=False)
    add = parser.add_argument
    add("--passages", type=int, default=10000, help="training passages; default: 10000")
    add("--num-layers", type=int, default=2, help="default: 2")
    add("--d-model", type=int, default=64, help="default: 64")
    return task_run.parse(parser, argv)


def reader(args, vocab_size):
    """Makes a model from question and passage, one row each, to two logits per passage token."""
    question_ids = keras.Input((None,), dtype="int32", name="first_ids")
    passage_ids = keras.Input((None,), dtype="int32", name="second_ids")
    embedding = kt.TokenEmbedding(vocab_size, args.d_model)
    question, passage = embedding(question_ids), embedding(passage_ids)
    # Align each passage word with the most similar part of the question. Equal words have large
    # products from the start, so the model need not learn that they match.
    aligned = keras.layers.Attention()([passage, question])
    product = keras.layers.Multiply()([passage, aligned])
    x = keras.layers.Concatenate()([passage, aligned, product])
    x = keras.layers.Dense(args.d_model)(x)

    sizes = dict(num_heads=4, d_ff=2 * args.d_model, dropout=0.0, positions="rotary")
    question = kt.EncoderBlock(**sizes)(question)
    for _ in range(args.num_layers):
        # Each passage word combines its neighbours ("the third of May" is one unit), then attends
        # to the question, then to the whole passage.
        near = kt.MaskedConv1D(args.d_model, 5, activation="relu")(x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, near]))
        seen = kt.MultiHeadAttention(4, args.d_model // 4)(x, question)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, seen]))
        x = kt.EncoderBlock(**sizes)(x)
    logits = keras.layers.Dense(2)(x)  # (B, S, 2)
    inputs = {"first_ids": question_ids, "second_ids": passage_ids}
    return kt.Model(inputs, {"start": logits[..., 0], "end": logits[..., 1]})


def train(args, run, sets, tokenizer):
    batches, valid = (
        kt.answer_batches(
            some.questions,
            some.passages,
            some.answers,
            tokenizer,
            tokens_per_batch=2500,
            one_row=False,
            shuffle=shuffle,
            seed=args.seed,
        )
        for some, shuffle in zip(sets, (True, False), strict=True)
    )
    print(f"training: {batches.batches.report}\nvalidation: {valid.batches.report}")
    model = reader(args, tokenizer.vocab_size)
    updates = args.epochs * len(batches)
    rate = learning_rate(
        peak=0.002, warmup_steps=min(300, updates // 4 + 1), anneal=True, updates=updates
    )
    model.compile(
        keras.optimizers.Adam(rate, 0.9, 0.98, 1e-9, global_clipnorm=1.0),
        loss={name: kt.SequenceCrossentropy(pad_id=-1) for name in OUTPUTS},
        weighted_metrics={name: kt.TokenAccuracy(pad_id=-1, name="accuracy") for name in OUTPUTS},
    )
    run.fit(model, batches, validation_data=valid, epochs=args.epochs, best="val_loss")
    return model


def draw_answers(model, tokenizer, questions, passage):
    """Plots the probability that each piece of a passage is in the answer to each question."""
    rows = []
    for question in questions:
        ids = [np.array([[*tokenizer.encode(text), END_ID]]) for text in (question, passage)]
        outputs = model.predict(dict(zip(("first_ids", "second_ids"), ids, strict=True)), verbose=0)
        start, end = (keras.activations.softmax(outputs[name])[0].numpy() for name in OUTPUTS)
        rows.append(np.cumsum(start) * np.cumsum(end[::-1])[::-1])  # started and not yet ended
    labels = plots.token_labels(tokenizer, tokenizer.encode(passage))
    ends = [i for i, label in enumerate(labels, 1) if label.endswith(".")]
    parts = [(np.array(rows)[:, a:b], labels[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    return plot_matrices(parts, questions, "probability of being in the answer")


def main(argv=None):
    args = parse_arguments(argv)
    with task_run.TaskRun(args) as run:
        *sets, test = calendar_questions(args.passages, limit=args.limit)
        texts = sets[0].questions + sets[0].passages
        # "bpe" keeps whole words as pieces if a text has few different words.
        tokenizer = kt.Tokenizer.train(texts, 900, hard_vocab_limit=False, model_type="bpe")
        model = train(args, run, sets, tokenizer)

        head = export.QuestionAnswering(max_answer_length=20)
        export.export_onnx(model, run.path / "onnx", tokenizer, head=head)
        predictor = Predictor(run.path / "onnx")
        pairs = list(zip(test.questions, test.passages, strict=True))
        found = predictor.predict(pairs)
        some = slice(4)  # the questions about the first passage
        figure = draw_answers(model, tokenizer, test.questions[some], test.passages[0])
        run.draw("answer.png", figure)
        print(test.passages[0])
        for question, answer in zip(test.questions[some], found, strict=False):
            print(f"{question} {answer.text} ({answer.score:.2f})")
        right = [(a.start, a.end) == tuple(b) for a, b in zip(found, test.answers, strict=True)]
        lookup = [a == b for a, b in zip(word_overlap_answers(test), test.answers, strict=True)]
        run.write_score(
            model,
            {"exact match": float(np.mean(right))},
            data="made calendars",
            questions=len(right),
            baseline={"most words in common, kind given": float(np.mean(lookup))},
        )


if __name__ == "__main__":
    main()
