"""Speaks texts such as "lucas two, seven, one": an encoder writes all frames of sound at once.

    python examples/speak.py               # tones of telephone keys in noise: no files
    python examples/speak.py --data DIR    # spoken digits in DIR/speech

A first encoder reads the tokens and predicts their durations. Its vectors are repeated for the
frames of their tokens, and a second encoder turns them into a spectrogram (FastSpeech, arXiv
1905.09263). The Griffin-Lim algorithm makes the sound. Each speaker says two digits in the test
only. The recognizer of `speech.py`, trained on other recordings, writes what it hears.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
import speech
from keras import ops
from support.baselines import series_classes
from support.plots import plot_sounds
from support.recipes import learning_rate
from support.scores.word_errors import word_error_rate
from support.sets.sound import HOP, log_bands, sound_of, write_wav
from support.sets.spoken_digits import RATE, dialled_digits, sequences, spoken_digits
from support.sets.spoken_sequences import (
    BANDS,
    GROUP,
    LONGEST,
    FreshSequences,
    is_new,
    padded,
    places_of,
    sound_of_parts,
    spoken_batch,
    text_of,
    word_tokenizer,
)
from support.task_run import TaskRun, make_parser, parse
from support.units import joined_units

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Predictor

D_MODEL = 96  # size of the vectors
SPEAKER_BANDS = 24  # of the spectra that tell voices apart
WAVES = 16  # of a place in its token


def make_model(vocab_size, layers):
    """Makes a model from ids (B, S) and places (B, T) to durations and frames.

    They are (B, S, 1) and (B, 4 T, F). The place 2.5 is the middle of token 2. Negative places
    are padding.
    """
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    places = keras.Input((None,), name="places")
    options = dict(num_heads=4, d_ff=2 * D_MODEL, activation="gelu", norm_first=True, dropout=0.0)
    x = kt.TokenEmbedding(vocab_size, D_MODEL)(ids)
    x = kt.EncoderBlock(**options)(kt.SinusoidalPositionEncoding()(x))
    durations = keras.layers.Dense(1, activation="softplus")(x)
    tokens = ops.floor(places)[..., None]
    numbers = ops.cumsum(ops.ones_like(ids), axis=1)[:, None] - 1
    own = ops.equal(tokens, ops.cast(numbers, "float32"))  # (B, T, S)
    angles = (places[..., None] - tokens) * np.pi * np.arange(1, WAVES + 1, dtype="float32")
    angles = ops.concatenate([ops.cos(angles), ops.sin(angles)], axis=-1)
    y = ops.matmul(ops.cast(own, "float32"), x) + keras.layers.Dense(D_MODEL)(angles)
    for _ in range(layers):
        block = kt.EncoderBlock(positions=kt.RelativePositionBias(), **options)
        y = block(y, attention_mask=ops.greater_equal(places, 0))
    y = keras.layers.Dense(GROUP * BANDS)(keras.layers.LayerNormalization()(y))
    frames = keras.layers.Reshape((-1, BANDS))(y)
    inputs = {"source_ids": ids, "places": places}
    return kt.Model(inputs, {"durations": durations, "frames": frames})


def train(args, run, tokenizer, recordings, valid):
    model = make_model(tokenizer.vocab_size, args.layers)
    print(f"{model.count_params():,} parameters, {len(recordings):,} recordings to train on")
    updates = args.epochs * args.updates
    warmup = updates // 10 + 1
    rate = learning_rate(peak=0.01, warmup_steps=warmup, anneal=True, updates=updates)
    model.compile(
        keras.optimizers.Muon(rate, adam_lr_ratio=0.2, global_clipnorm=1.0),
        loss={"durations": "mean_squared_logarithmic_error", "frames": "mean_absolute_error"},
    )
    data = FreshSequences(recordings, tokenizer, args.updates, args.seed)
    run.fit(model, data, validation_data=valid, epochs=args.epochs, best="val_loss")
    return model


def spectra_of(sounds):
    return [log_bands(sound, SPEAKER_BANDS) for sound in sounds]


def trained_judge(args, sets):
    """Trains the model of `speech.py`; returns a function of sounds and their sequences."""
    transcribe = speech.trained_recognizer(args, sets)
    drawn = sequences(sets.train, args.limit or 1200, 1, LONGEST)
    known = spectra_of(map(sound_of_parts, drawn)), [parts[0].speaker for parts in drawn]

    def judge(sounds, drawn):
        """Returns the word error rate, and the share of sounds with the voice of their speaker."""
        texts = [" ".join(part.word for part in parts[::2]) for parts in drawn]
        voices = series_classes(*known, spectra_of(sounds))
        right = [voice == parts[0].speaker for voice, parts in zip(voices, drawn, strict=True)]
        return word_error_rate(transcribe(sounds), texts), float(np.mean(right))

    return judge


def served(folder):
    """Returns a function from texts to frames (4 T, F): the models of two exports."""
    durations, frames = (Predictor(f"{folder}/{name}") for name in ("durations", "frames"))

    def spectrograms(texts):
        found = [result.arrays["durations"][:, 0] for result in durations.predict(texts)]
        places = [places_of(some) for some in found]
        pairs = zip(texts, places, strict=True)
        given = [{"source_ids": text, "places": some} for text, some in pairs]
        return [result.arrays["frames"] for result in frames.predict(given)]

    return spectrograms


def show(run, sounds, drawn):
    """Plots the longest sequence, and writes the first one of each speaker as a WAV file."""
    row = int(np.argmax([len(parts) for parts in drawn]))
    shown = ("test recordings", "Transformer", "mean recordings")
    # The value of silence pads the shorter sounds.
    frames = padded([log_bands(sounds[name][row], BANDS) for name in shown], -1.8)
    titles = [f"{name}: {text_of(drawn[row])}" for name in shown]
    titled = dict(zip(titles, frames, strict=True))
    run.draw("spectrograms.png", plot_sounds(titled, frames.shape[1] * HOP / RATE, RATE / 2))
    first = {parts[0].speaker: row for row, parts in reversed([*enumerate(drawn)])}
    for speaker, row in first.items():
        write_wav(run.path / f"{speaker}.wav", sounds["Transformer"][row], RATE)


def main(argv=None):
    parser = make_parser("speak", __doc__, epochs=None)
    parser.add_argument("--layers", type=int, default=3, help="of the second encoder; default: 3")
    parser.add_argument("--updates", type=int, help="per epoch; default: 100, or 20 of tones")
    args = parse(parser, argv)
    args.epochs = args.epochs or (10 if args.data else 6)
    args.updates = args.updates or (100 if args.data else 20)
    with TaskRun(args) as run:
        sets = spoken_digits(args.data / "speech") if args.data else dialled_digits()
        speakers = sorted({one.speaker for one in sets.train})
        # The recognizer knows no recording of the model that it judges.
        judge = trained_judge(args, sets._replace(train=sets.train[::2]))
        sets = sets._replace(train=sets.train[1::2])
        old, new = (
            [[one for one in some if is_new(one, speakers) == kind] for some in sets]
            for kind in (False, True)
        )
        tokenizer = word_tokenizer(speakers)
        valid = spoken_batch(sequences(old[1], args.limit or 200, 1, LONGEST), tokenizer)
        model = train(args, run, tokenizer, old[0], valid)
        inputs, outputs = model.input, model.output
        durations = keras.Model(inputs["source_ids"], {"durations": outputs["durations"]})
        frames = keras.Model(inputs, {"frames": outputs["frames"]})
        samples = [{name: array[:count] for name, array in valid[0].items()} for count in (1, 3)]
        export.export_onnx(durations, run.path / "onnx" / "durations", tokenizer)
        export.export_onnx(frames, run.path / "onnx" / "frames", tokenizer, samples=samples)

        # From here on, ONNX Runtime speaks.
        speak, random, measured = served(run.path / "onnx"), np.random.default_rng(0), {}
        for kind, part in {"known digits": old, "new digits": new}.items():
            drawn = sequences(part[2], args.limit or 300, 1, LONGEST)
            real = [sound_of_parts(parts) for parts in drawn]
            pauses = [part for parts in drawn for part in parts[1::2]]
            sounds = {
                "Transformer": [
                    sound_of(some) for some in speak([text_of(parts) for parts in drawn])
                ],
                "test recordings": real,
                "test recordings after Griffin-Lim": [sound_of(log_bands(s, BANDS)) for s in real],
                **joined_units([*old[0], *pauses], drawn, random),
            }
            found = {name: judge(some, drawn) for name, some in sounds.items()}
            for place, name in enumerate(("word error rate", "right voice")):
                measured[f"{name} of {kind}"] = {key: pair[place] for key, pair in found.items()}
        show(run, sounds, drawn)
        score = {name: found["Transformer"] for name, found in measured.items()}
        run.write_score(model, score, measured, data="FSDD" if args.data else "made")


if __name__ == "__main__":
    main()
