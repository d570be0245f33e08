"""Removes noise from speech: an encoder reads all frames and writes a mask of the spectrum.

    python examples/denoise.py               # synthetic voices: no files
    python examples/denoise.py --data DIR    # spoken digits in DIR/speech

Each frame of the noisy sound is a token. Attention compares it with all other frames. The output is
a complex factor for each frequency of a frame: it changes loudness and phase. The inverse transform
returns the sound. The speaker and the kinds of noise of the test do not occur in training. Another
speaker and other kinds choose the epoch and the settings of the baselines, which are spectral
subtraction and a Wiener filter. ONNX Runtime removes the noise of the test set, and the recognizer
of `speech.py`, which knows clean sound only, writes what it hears.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

from itertools import product

import keras
import numpy as np
import speech
from keras import ops
from support import filters
from support.plots import plot_sounds
from support.recipes import learning_rate
from support.scores.separation import si_sdr
from support.scores.word_errors import word_error_rate
from support.sets import noisy_speech
from support.sets.sound import log_bands, write_wav
from support.sets.spoken_digits import RATE, spoken_digits
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

D_MODEL = 96  # size of the vectors
BINS = filters.HOP + 1  # frequencies of a frame
# The settings that are tried: quantile of the noise, its factor, least gain, and memory.
GRID = (0.3, 0.5, 0.7), (1, 2, 4), (0.03, 0.1), (0.6, 0.8, 0.9)


def make_model(layers):
    """Makes a model from rows (B, S, 2 F), real and imaginary parts, to rows of clean sound."""
    rows = keras.Input((None, 2 * BINS), name="rows")
    real, imaginary = rows[..., :BINS], rows[..., BINS:]
    x = ops.log(ops.square(real) + ops.square(imaginary) + 1e-4)
    x = keras.layers.Conv1D(D_MODEL, 3, padding="same")(x)
    options = dict(num_heads=4, d_ff=2 * D_MODEL, activation="gelu", norm_first=True, dropout=0.0)
    for _ in range(layers):
        x = kt.EncoderBlock(positions=kt.RelativePositionBias(), **options)(x)
    x = keras.layers.LayerNormalization()(x)
    # At first, the factors are 1.
    mask = keras.layers.Dense(2 * BINS, kernel_initializer="zeros")(x)
    a, b = 1 + mask[..., :BINS], mask[..., BINS:]
    clean = ops.concatenate([a * real - b * imaginary, a * imaginary + b * real], axis=-1)
    return kt.Model(rows, clean)


def ratio_loss(clean, rows):
    """Returns minus the SI-SDR of rows, in dB: (B,).

    It needs no inverse transform, and is about the SI-SDR of the sounds. Only the lowest and the
    highest frequency count twice as much.
    """
    over = dict(axis=(1, 2), keepdims=True)
    share = ops.sum(clean * rows, **over) / (ops.sum(ops.square(clean), **over) + 1e-6)
    rest = ops.sum(ops.square(rows - share * clean), axis=(1, 2)) + 1e-6
    wanted = ops.sum(ops.square(share * clean), axis=(1, 2)) + 1e-6
    return -10 * ops.log10(wanted / rest)


LOSSES = {"ratio": ratio_loss, "spectrum": "mean_absolute_error"}


def served(folder):
    """Returns a function from noisy to clean spectra (N, S, F): the model of an export."""
    predictor = Predictor(folder)

    def transformer(noisy):
        results = predictor.predict(filters.rows_of(noisy))
        rows = np.stack([next(iter(result.arrays.values())) for result in results])
        return rows[..., :BINS] + 1j * rows[..., BINS:]

    return transformer


def removed(made, method, settings=()):
    """Returns the sounds (N, L) of mixtures after a method."""
    return filters.sounds_of(method(filters.spectra(made.noisy), *settings))


def gains(sounds, made):
    """Returns the gain of sounds over the noisy ones, in dB of SI-SDR: (N,)."""
    return si_sdr(sounds, made.clean) - si_sdr(made.noisy, made.clean)


def tuned(made, method, grid):
    """Returns the method's settings with the largest gain."""
    found = {one: gains(removed(made, method, one), made).mean() for one in product(*grid)}
    return max(found, key=found.get)


def by_group(better, groups):
    """Returns the mean gain of each method for each group."""
    return {
        str(group): {
            name: float(
                np.mean([one for one, its in zip(some, groups, strict=True) if its == group])
            )
            for name, some in better.items()
        }
        for group in dict.fromkeys(groups)
    }


def heard_errors(transcribe, made, sounds, level):
    """Returns the word error rates of sounds, all at the standard deviation `level`."""
    sounds = {"noisy": made.noisy, "clean": made.clean, **sounds}
    return {
        name: word_error_rate(transcribe([level * one / one.std() for one in some]), made.texts)
        for name, some in sounds.items()
    }


def show(run, made, sounds):
    """Plots the first mixture, and writes the first one of each kind as WAV files."""
    drawn = {"noisy": made.noisy[0], "clean": made.clean[0], **{n: s[0] for n, s in sounds.items()}}
    frames = {title: log_bands(sound, 64) for title, sound in drawn.items()}
    run.draw("spectrograms.png", plot_sounds(frames, made.clean.shape[1] / RATE, RATE / 2))
    for kind in dict.fromkeys(made.kinds):
        row = made.kinds.index(kind)
        write_wav(run.path / f"{kind}-noisy.wav", made.noisy[row], RATE)
        write_wav(run.path / f"{kind}-denoised.wav", sounds["Transformer"][row], RATE)


def main(argv=None):
    parser = make_parser("denoise", __doc__, epochs=40)
    add = parser.add_argument
    add("--layers", type=int, default=4, help="encoder blocks; default: 4")
    add("--updates", type=int, help="per epoch; default: 300, or 20 of synthetic voices")
    add("--loss", choices=LOSSES, default="ratio", help="default: ratio")
    add("--speaker", help="of the test set; default: the last one")
    args = parse(parser, argv)
    args.updates = args.updates or (300 if args.data else 20)
    with TaskRun(args) as run:
        sets = spoken_digits(args.data / "speech") if args.data else noisy_speech.made_voices()
        voices = noisy_speech.split_voices(
            sets, args.speaker or max(one.speaker for one in sets.train)
        )
        draw = np.random.default_rng(0)  # the same mixtures for each seed
        kinds = noisy_speech.VALID_KINDS + noisy_speech.TRAIN_KINDS
        valid = noisy_speech.mixtures(draw, *voices["valid"], kinds, args.limit or 270)
        model = make_model(args.layers)
        updates = args.epochs * args.updates
        warmup = updates // 10 + 1
        rate = learning_rate(peak=1e-3, warmup_steps=warmup, anneal=True, updates=updates)
        optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=5.0)
        model.compile(optimizer, loss=LOSSES[args.loss], metrics=[ratio_loss])
        data = noisy_speech.FreshMixtures(voices["train"], args.updates, args.seed)
        options = dict(epochs=args.epochs, best="val_ratio_loss")
        run.fit(model, data, validation_data=noisy_speech.row_pairs(valid), **options)
        export.export_onnx(model, run.path / "onnx")

        # From here on, ONNX Runtime removes the noise.
        subtract, wiener = filters.spectral_subtraction, filters.wiener_filter
        methods = {
            "Transformer": (served(run.path / "onnx"), ()),
            "spectral subtraction": (subtract, tuned(valid, subtract, GRID[:3])),
            "Wiener filter": (wiener, tuned(valid, wiener, GRID)),
        }
        gained = {}
        for kinds, count in ((noisy_speech.TRAIN_KINDS, 210), (noisy_speech.TEST_KINDS, 270)):
            made = noisy_speech.mixtures(draw, *voices["test"], kinds, args.limit or count)
            sounds = {name: removed(made, *method) for name, method in methods.items()}
            better = {name: gains(some, made) for name, some in sounds.items()}
            gained |= by_group(better, made.kinds)
        gained |= by_group(better, [f"{level} dB" for level in made.levels])  # of new kinds
        transcribe = speech.trained_recognizer(args, sets)
        level = np.mean([one.samples.std() for one in sets.train])
        gained["word error rate"] = heard_errors(transcribe, made, sounds, level)
        show(run, made, sounds)
        gain, *simple = [float(some.mean()) for some in better.values()]
        baseline = dict(zip([*methods][1:], simple, strict=True))
        data = "FSDD" if args.data else "made voices"
        facts = dict(data=data, baseline=baseline, settings={n: s for n, (_, s) in methods.items()})
        run.write_score(model, {"SI-SDR gain in dB": gain}, gained, **facts)


if __name__ == "__main__":
    main()
