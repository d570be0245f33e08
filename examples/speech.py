"""Transcribes sound: an encoder reads frames of sound, and a decoder writes the words.

    python examples/speech.py               # tones of telephone keys in noise: no files
    python examples/speech.py --data DIR    # spoken digits in DIR/speech

Two strided convolutions divide the number of frames by four. In the encoder blocks, all frames
attend to each other. The decoder attends to them and writes one word at a time (Speech-Transformer,
Dong et al. 2018). The data does not mark the words in the sound: cross-attention learns to find
them. One model reads single digits and sequences of digits.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import argparse

import keras
import numpy as np
from support.baselines import series_classes
from support.plots import plot_spectrogram
from support.recipes import learning_rate
from support.scores.word_errors import word_error_rate
from support.sets.sound import log_bands
from support.sets.spoken_digits import RATE, dialled_digits, joined, spoken_digits
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export, plots
from keras_transformer.export.runtime import Transcriber
from keras_transformer.special_ids import BEGIN_ID, END_ID

D_MODEL = 64  # size of the vectors
EPOCHS, LAYERS = 10, 3
LONGEST = 5  # digits in a sequence
MOST_FRAMES = 500  # of a digit and the silence before it: five seconds


def make_model(vocab_size, bands, blocks):
    frames = keras.Input((None, bands), name="frames")
    x = keras.layers.Masking()(frames)  # frames of zeros are padding
    for _ in range(2):  # one vector per 4 frames, 40 ms
        x = kt.MaskedConv1D(D_MODEL, 3, strides=2, activation="gelu")(x)
    x = kt.SinusoidalPositionEncoding()(x)
    for _ in range(blocks):
        x = kt.EncoderBlock(num_heads=4, d_ff=2 * D_MODEL, dropout=0.1)(x)
    encoder = keras.Model(frames, x)
    return kt.Transformer(
        vocab_size, num_layers=1, d_model=D_MODEL, num_heads=4, d_ff=2 * D_MODEL, encoder=encoder
    )


def train(args, run, sets, tokenizer):
    def batches(recordings, count, **options):
        sounds, texts = joined(recordings, count, shortest=1, longest=LONGEST)
        frames = [log_bands(sound, args.bands) for sound in sounds]
        size = 4096 if args.data else 2048  # frames per batch; tones are short
        return kt.feature_batches(frames, texts, tokenizer, size, name="frames", **options)

    data = batches(sets.train, args.limit or args.sequences, seed=args.seed)
    valid = batches(sets.valid, args.limit or 300, shuffle=False)
    model = make_model(tokenizer.vocab_size, args.bands, args.layers)
    print(f"{model.count_params():,} parameters; {data.batches.report}")
    updates = args.epochs * len(data)
    # With a warm-up of a tenth, cross-attention does not learn the alignment from some seeds.
    warmup = max(300, updates // 5 + 1)
    rate = learning_rate(peak=2e-3, warmup_steps=warmup, anneal=True, updates=updates)
    model.compile(
        keras.optimizers.Adam(rate, 0.9, 0.98, 1e-9),
        loss=kt.SequenceCrossentropy(label_smoothing=0.1),
        metrics=[kt.TokenAccuracy(name="accuracy")],
    )
    # The batches are already shuffled.
    run.fit(model, data, validation_data=valid, epochs=args.epochs, best="val_accuracy")
    return model


def make_recognizer(args, run, sets):
    """Trains and exports a model; returns it with its tokenizer."""
    texts = joined(sets.train, 1000, 1, LONGEST)[1]  # to collect the words
    options = {"byte_fallback": False, "hard_vocab_limit": False}
    tokenizer = kt.Tokenizer.train(texts, vocab_size=40, **options)  # one piece per word
    model = train(args, run, sets, tokenizer)
    lengths = dict(max_length=2 * LONGEST, max_source_length=LONGEST * MOST_FRAMES)
    export.export_onnx(model, run.path / "onnx", tokenizer, kt.BeamSearch(beam_width=4), **lengths)
    return model, tokenizer


def complete(args):
    """Adds the settings that depend on the data."""
    args.sequences = args.sequences or (8000 if args.data else 3000)
    args.bands = 24 if args.data else 64  # per frame; the tones of keys are close together


def trained_recognizer(task, sets):
    """Trains a model with the default settings, so that another script can use it.

    Args:
        task: arguments of the other task: `data`, `limit`, `seed` and `output`.
        sets: `RecordingSets`.

    Returns:
        Function from a list of sounds to their texts. ONNX Runtime computes them.
    """
    own = {**vars(task), "layers": LAYERS, "epochs": EPOCHS, "sequences": None}
    args = argparse.Namespace(**{**own, "output": task.output / "recognizer"})
    complete(args)
    with TaskRun(args) as run:
        make_recognizer(args, run, sets)
    transcriber = Transcriber(args.output / "onnx")
    return lambda sounds: transcriber.transcribe([log_bands(s, args.bands) for s in sounds])


def draw(run, model, tokenizer, sound, frames, text):
    """Plots the spectrogram, and the cross-attention of each written word to it."""
    ids = tokenizer.encode(text)
    weights = plots.attention_maps(model, frames, [BEGIN_ID, *ids])["cross"]  # (1, heads, T, S')
    written = plots.token_labels(tokenizer, [*ids, END_ID])
    seconds = len(sound) / RATE
    figure = plot_spectrogram(
        frames, seconds, RATE / 2, weights[-1].mean(axis=0), written, f"“{text}”"
    )
    run.draw("spectrogram.png", figure)


def main(argv=None):
    parser = make_parser("speech", __doc__, epochs=EPOCHS)
    parser.add_argument(
        "--layers", type=int, default=LAYERS, help=f"encoder blocks; default: {LAYERS}"
    )
    parser.add_argument("--sequences", type=int, help="default: 8000, or 3000 of tones")
    args = parse(parser, argv)
    complete(args)
    with TaskRun(args) as run:
        sets = spoken_digits(args.data / "speech") if args.data else dialled_digits()
        model, tokenizer = make_recognizer(args, run, sets)

        # From here on, ONNX Runtime predicts.
        transcriber = Transcriber(run.path / "onnx")
        single = sets.test[: args.limit]
        heard = transcriber.transcribe([log_bands(one.samples, args.bands) for one in single])
        right = np.mean([one.word == text for one, text in zip(single, heard, strict=True)])
        sounds, texts = joined(sets.test, args.limit or 300, shortest=3, longest=LONGEST)
        frames = [log_bands(sound, args.bands) for sound in sounds]
        heard = transcriber.transcribe(frames)
        for text, found in list(zip(texts, heard, strict=True))[:5]:
            print(f"  {text} -> {found}")
        draw(run, model, tokenizer, sounds[0], frames[0], heard[0])
        bands = [
            [log_bands(one.samples, args.bands) for one in some] for some in (sets.train, single)
        ]
        linear = series_classes(bands[0], [one.word for one in sets.train], bands[1])
        score = {
            "accuracy of single digits": float(right),
            "word error rate of 3-5 joined": word_error_rate(heard, texts),
        }
        simple = np.mean([one.word == text for one, text in zip(single, linear, strict=True)])
        baseline = {"logistic regression on statistics, single digits": float(simple)}
        data = "FSDD" if args.data else "made"
        run.write_score(model, score, data=data, baseline=baseline)


if __name__ == "__main__":
    main()
