"""Trains a model of chorales in four voices, and harmonizes given melodies.

    python examples/music.py                 # made chorales of a few chords
    python examples/music.py --data DIR      # Bach's, DIR/music/Jsb16thSeparated.json.gz

The model is a decoder. Its tokens are the notes of soprano, alto, tenor and bass in each sixteenth,
one after the other. During generation, a constraint keeps this order and sets the soprano to the
melody. The best of several samples is the one whose four voices are most probable. The script
writes MIDI files, their sound if FluidSynth is installed, and a piano roll. Needs mido.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
import onnxruntime
import tensorflow as tf
from support.baselines import backoff_nats
from support.plots import plot_piano_rolls
from support.recipes import learning_rate
from support.sets import chorales as sets
from support.sets.chorale_windows import all_notes, training_windows
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.search import forbid_tokens
from keras_transformer.special_ids import BEGIN_ID

UPDATES = 200  # per epoch
WINDOW, WINDOWS = 64, 8  # sixteenths per window, which are four bars; windows per batch
SMALL = dict(num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.0)
LARGE = dict(num_layers=4, d_model=128, num_heads=4, d_ff=512, dropout=0.1)
PUBLISHED = {
    "Transformer, validation": 0.417,
    "with relative positions, validation": 0.335,
}


class Melody(kt.Constraint):
    """Keeps the order of the voices, and sets the soprano to the melody of the call.

    Call arguments:
        melody: int32 (B, M), the token of the soprano in each sixteenth. The soprano is free
            where it is 0, and after its end.
    """

    inputs = {"melody": np.zeros((1, 0), np.int32)}
    kinds = (np.arange(sets.VOCAB_SIZE) - sets.FIRST_ID) // sets.NOTES

    def read(self, source, inputs):
        return tf.pad(inputs["melody"], [[0, 0], [0, 1]])

    def step(self, logits, past, state, known):
        place = tf.reduce_sum(tf.cast(past.history > 0, tf.int32), axis=2)  # (B, W)
        sixteenth, voice = place // 4, place % 4
        last = tf.shape(known)[1] - 1
        note = tf.gather(known, tf.minimum(sixteenth, last), batch_dims=1)  # (B, W)
        kind = tf.where(voice == 0, sixteenth % sets.SIXTEENTHS, voice + sets.SIXTEENTHS - 1)
        set_by_melody = tf.logical_and(voice == 0, note > 0)[..., None]
        ids = np.arange(sets.VOCAB_SIZE)
        allowed = tf.where(set_by_melody, note[..., None] == ids, kind[..., None] == self.kinds)
        return forbid_tokens(logits, tf.logical_not(allowed)), state


def train(args, run, chorales):
    model = kt.CausalTransformer(
        sets.VOCAB_SIZE,
        **(LARGE if args.data else SMALL),
        norm_first=True,
        activation="gelu",
        positions="rotary",
    )
    updates = args.epochs * UPDATES
    rate = learning_rate(peak=0.01, warmup_steps=100, anneal=True, updates=updates)
    model.compile(
        keras.optimizers.Muon(  # for matrices; AdamW for vectors and the embedding
            rate, adam_lr_ratio=0.2, weight_decay=0.1, adam_weight_decay=0.1, global_clipnorm=1.0
        ),
        loss=kt.SequenceCrossentropy(),
        metrics=[kt.Perplexity()],
        jit_compile=True,  # all windows have one shape
    )
    batches = training_windows(chorales["train"], WINDOW, WINDOWS, args.seed)
    measured = all_notes(chorales["valid"], WINDOW)
    valid = dict(validation_data=measured, validation_batch_size=WINDOWS)
    options = dict(epochs=args.epochs, steps_per_epoch=UPDATES, shuffle=False, **valid)
    run.fit(model, batches, best="val_perplexity", **options)
    return model


def counted_nats(train, test):
    """Returns the nats a note of counts that back off from the chord to the voice's last note."""

    def contexts(notes, place):
        voice, beat = place % 4, place // 4 % 4
        last, chord = notes[max(0, place - 4) : place - 3], notes[place - voice : place]
        before = notes[max(0, place - voice - 4) : place - voice]
        return [
            (voice,),
            (voice, last),
            (voice, last, chord[-1:]),
            (voice, last, chord),
            (voice, last, chord, beat),
            (voice, last, chord, beat, before),
        ]

    flat = ([tuple(one.reshape(-1).tolist()) for one in some] for some in (train, test))
    return backoff_nats(*flat, contexts)


def nats(model, chorales):
    windows = all_notes(chorales, WINDOW)
    measured = model.evaluate(*windows, WINDOWS, verbose=0, return_dict=True)
    return float(np.log(measured["perplexity"]))


def main(argv=None):
    parser = make_parser("music", __doc__, epochs=None)
    parser.add_argument("--melodies", type=int, default=8, help="melodies to harmonize; default: 8")
    args = parse(parser, argv)
    args.epochs = args.epochs or (20 if args.data else 2)
    with TaskRun(args) as run:
        if args.data:
            chorales = sets.read_chorales(args.data / "music", args.limit)
        else:
            chorales = sets.made_chorales(args.limit)
        model = train(args, run, chorales)
        search = kt.Sampling(temperature=0.8, num_samples=8, constraints=[Melody()])
        export.export_onnx(model, run.path / "onnx", search=search, max_length=4 * WINDOW)

        # From here on, ONNX Runtime writes the music.
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # no warnings about inputs with defaults
        session = onnxruntime.InferenceSession(run.path / "onnx" / "model.onnx", options)
        given = np.stack([one[:WINDOW] for one in chorales["test"][: args.melodies]])
        melody = np.stack([sets.to_ids(one)[::4] for one in given])
        inputs = {"source_ids": np.full((len(melody), 1), BEGIN_ID, np.int32), "melody": melody}
        found, _ = session.run(None, {**inputs, "seed": np.array(args.seed, np.int32)})
        written = [sets.to_chorale(samples[0]) for samples in found]  # the best sample is first
        same = np.mean([a[:, 1:] == b[:, 1:] for a, b in zip(written, given, strict=True)])
        for number, one in enumerate(written):
            sets.write_midi(run.path / f"harmonized-{number}.mid", one)
            sets.render_midi(run.path / f"harmonized-{number}.mid")
        titles = "the chorale", "its melody, harmonized"
        run.draw("piano_roll.png", plot_piano_rolls([given[0], written[0]], titles))
        run.write_score(
            model,
            {"nats a note": nats(model, chorales["test"])},
            {
                "validation": {"nats a note": nats(model, chorales["valid"])},
                "harmonized melodies": {"notes of the chorale": float(same)},
            },
            data="Bach's chorales" if args.data else "made chorales",
            baseline={"counts with back-off": counted_nats(chorales["train"], chorales["test"])},
            published=PUBLISHED if args.data else None,
        )


if __name__ == "__main__":
    main()
