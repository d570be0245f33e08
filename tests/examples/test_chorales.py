"""Chorales: sets, tokens, windows, MIDI files, and the constraint of the script."""

import json
import shutil
import wave

import numpy as np
import pytest
import tensorflow as tf
from helpers import scripts
from helpers.example_files import write
from support.sets import chorales
from support.sets.chorale_windows import all_notes, training_windows
from support.sets.chorales import SILENCE, made_chorales, to_chorale, to_ids

from keras_transformer.search import Past

CHORALE = np.array([[72, 67, 64, 48], [72, 67, -1, 48], [74, 67, -1, 50]] * 8, np.int32)


def test_bachs_file_is_read(tmp_path):
    one = CHORALE.tolist()
    sets = {"train": [one, one], "valid": [one], "test": [one]}
    folder = write(tmp_path, {chorales.FILE: json.dumps(sets)})
    expected = {name: [CHORALE] for name in sets}
    np.testing.assert_equal(chorales.read_chorales(folder, limit=1), expected)


def test_made_chorales_keep_their_ranges():
    sets = made_chorales()
    assert [len(some) for some in sets.values()] == [60, 10, 10]
    sung = np.concatenate(sum(sets.values(), []))
    assert (sung >= chorales.BOTTOM).all() and (sung <= np.add(chorales.BOTTOM, 12)).all()
    assert {len(one) for one in sets["train"]} == {64}


def test_tokens_are_a_kind_and_a_note():
    ids = to_ids(CHORALE)
    np.testing.assert_array_equal(to_chorale(ids), CHORALE)
    kinds = (ids - chorales.FIRST_ID) // chorales.NOTES
    assert kinds[:20].tolist() == [0, 4, 5, 6, 1, 4, 5, 6, 2, 4, 5, 6, 3, 4, 5, 6, 0, 4, 5, 6]
    assert ids.min() >= chorales.FIRST_ID and ids.max() < chorales.VOCAB_SIZE


def test_chorales_are_transposed_within_the_ranges_of_the_voices():
    moved = np.where(CHORALE == SILENCE, SILENCE, CHORALE + 2)
    np.testing.assert_array_equal(chorales.transpose(CHORALE, 2), moved)
    assert chorales.transpositions(CHORALE, [71, 60, 50, 40], [76, 80, 70, 60]) == range(-1, 3)


def test_each_note_is_a_label_once_and_after_half_a_window():
    some = [CHORALE, CHORALE[:9]]
    inputs, labels = all_notes(some, window=8)
    assert inputs.shape == labels.shape == (7, 32)
    np.testing.assert_array_equal(inputs[:, 0], 2)
    expected = np.concatenate([to_ids(one) for one in some])
    np.testing.assert_array_equal(labels[labels > 0], expected)
    assert (labels > 0).argmax(axis=1).tolist() == [0, 16, 16, 16, 16, 0, 16]
    np.testing.assert_array_equal(inputs[1, 1:], to_ids(CHORALE)[16:47])


def test_training_windows_begin_on_beats():
    batches = training_windows(made_chorales()["train"], window=16, count=5, seed=3)
    for _ in range(20):
        inputs, labels = next(batches)
        np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
        assert {(row[0] - chorales.FIRST_ID) // chorales.NOTES for row in labels} == {0}


def test_midi_files_hold_the_notes_and_become_sound_where_fluidsynth_is(tmp_path, monkeypatch):
    mido = pytest.importorskip("mido")
    chorales.write_midi(tmp_path / "one.mid", CHORALE[:3], beats_a_minute=60)
    file = mido.MidiFile(tmp_path / "one.mid")
    assert [track.name for track in file.tracks[1:]] == list(chorales.VOICES)
    assert file.length == pytest.approx(0.75)
    found = []
    for track in file.tracks[1:]:
        now, voice = 0, []
        for message in track:
            now += message.time
            if message.type in ("note_on", "note_off"):
                voice.append((message.type[5:], message.note, now // 120))
        found.append(voice)
    assert found[0] == [("on", 72, 0), ("off", 72, 2), ("on", 74, 2), ("off", 74, 3)]
    assert found[2] == [("on", 64, 0), ("off", 64, 1)]
    sound = chorales.render_midi(tmp_path / "one.mid")
    if sound is None:
        assert shutil.which("fluidsynth") is None or not chorales.SOUND_FONT.exists()
    else:
        with wave.open(str(sound)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            assert file.getnframes() / file.getframerate() > 0.75 and np.abs(samples).max() > 500
    monkeypatch.setattr(chorales, "SOUND_FONT", tmp_path / "missing.sf2")
    assert chorales.render_midi(tmp_path / "one.mid") is None


@pytest.mark.parametrize(
    "place, kind", [(0, None), (1, 4), (3, 6), (4, None), (8, 2), (12, 3), (13, 4)]
)
def test_the_constraint_keeps_the_order_of_voices_and_sets_the_soprano(place, kind):
    constraint = scripts.load("music").Melody()
    melody = to_ids(CHORALE[:2])[None, ::4]  # two sixteenths, the rest is free
    known = constraint.read(None, {"melody": tf.constant(melody)})
    history = tf.constant(to_ids(CHORALE)[None, None, :place])
    past = Past(tf.constant([[5]]), history, *map(tf.constant, (place + 1, 9)))
    found, _ = constraint.step(tf.zeros([1, 1, chorales.VOCAB_SIZE]), past, (), known)
    if kind is None:
        expected = [melody[0, place // 4]]
    else:
        expected = chorales.FIRST_ID + kind * chorales.NOTES + np.arange(chorales.NOTES)
    np.testing.assert_array_equal(np.flatnonzero(found.numpy()[0, 0] == 0), expected)
