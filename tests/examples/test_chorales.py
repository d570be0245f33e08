"""Chorales: sets, tokens, windows, MIDI files, piano rolls, and the constraint of the script."""

import gzip
import json
import shutil
import wave

import numpy as np
import pytest
import tensorflow as tf
from helpers import scripts
from support.plots import plot_piano_rolls
from support.sets import chorales
from support.sets.chorale_windows import all_notes, training_windows
from support.sets.chorales import SILENCE, made_chorales, to_chorale, to_ids

from keras_transformer.search import Past

CHORALE = np.array([[72, 67, 64, 48], [72, 67, -1, 48], [74, 67, -1, 50]] * 8, np.int32)


def write_set(folder, sets):
    (folder / chorales.FILE).write_bytes(gzip.compress(json.dumps(sets).encode()))
    return folder


def test_bachs_file_is_read_and_malformed_files_are_refused(tmp_path):
    one = CHORALE.tolist()
    sets = chorales.read_chorales(
        write_set(tmp_path, {"train": [one, one], "valid": [one], "test": [one]}), limit=1
    )
    assert {name: len(some) for name, some in sets.items()} == dict(train=1, valid=1, test=1)
    np.testing.assert_array_equal(sets["test"][0], CHORALE)
    for bad, message in (
        ({"train": [one]}, "no set 'valid'"),
        ({"train": [[[60, 60]]], "valid": [], "test": []}, "chorale 0: expected rows of four"),
        ({"train": [[[60], [60, 61]]], "valid": [], "test": []}, "rows of four pitches"),
    ):
        with pytest.raises(ValueError, match=message):
            chorales.read_chorales(write_set(tmp_path, bad))


def test_made_chorales_are_the_same_in_every_call_and_keep_their_ranges():
    sets = made_chorales()
    assert [len(some) for some in sets.values()] == [60, 10, 10]
    np.testing.assert_array_equal(made_chorales(2)["train"][1], sets["train"][1])
    sung = np.concatenate(sum(sets.values(), []))
    assert (sung >= chorales.BOTTOM).all() and (sung <= np.add(chorales.BOTTOM, 12)).all()
    assert {len(one) for one in sets["train"]} == {64}


def test_tokens_are_a_kind_and_a_note():
    ids = to_ids(CHORALE)
    np.testing.assert_array_equal(to_chorale(ids), CHORALE)
    kinds = (ids - chorales.FIRST_ID) // chorales.NOTES
    assert kinds[:20].tolist() == [0, 4, 5, 6, 1, 4, 5, 6, 2, 4, 5, 6, 3, 4, 5, 6, 0, 4, 5, 6]
    assert ids.min() >= chorales.FIRST_ID and ids.max() < chorales.VOCAB_SIZE
    with pytest.raises(ValueError, match="pitches must be from 36 to 81"):
        to_ids(CHORALE + 20)


def test_chorales_are_transposed_within_the_ranges_of_the_voices():
    moved = chorales.transpose(CHORALE, 2)
    assert (moved == SILENCE).sum() == (CHORALE == SILENCE).sum()
    assert moved.max() == 76
    assert chorales.transpositions(CHORALE, [71, 60, 50, 40], [76, 80, 70, 60]) == range(-1, 3)


def test_each_note_is_a_label_once_and_after_half_a_window():
    some = [CHORALE, CHORALE[:9]]
    inputs, labels = all_notes(some, window=8)
    assert inputs.shape == labels.shape == (7, 32)
    np.testing.assert_array_equal(inputs[:, 0], 2)
    predicted = [labels[labels > 0][:96], labels[labels > 0][96:]]
    for ids, one in zip(predicted, some, strict=True):
        np.testing.assert_array_equal(ids, to_ids(one))
    assert (labels > 0).argmax(axis=1).tolist() == [0, 16, 16, 16, 16, 0, 16]
    np.testing.assert_array_equal(inputs[1, 1:], to_ids(CHORALE)[16:47])


def test_training_windows_begin_on_beats_in_keys_that_can_be_sung():
    batches = training_windows(made_chorales()["train"], window=16, count=5, seed=3)
    for _ in range(20):
        inputs, labels = next(batches)
        np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
        assert {(row[0] - chorales.FIRST_ID) // chorales.NOTES for row in labels} == {0}
    with pytest.raises(ValueError, match="a chorale has only 24"):
        next(training_windows([CHORALE], 64, 1, 0))


def test_midi_files_hold_the_notes(tmp_path):
    mido = pytest.importorskip("mido")
    chorales.write_midi(tmp_path / "one.mid", CHORALE[:3], beats_a_minute=60)
    file = mido.MidiFile(tmp_path / "one.mid")
    assert [track.name for track in file.tracks[1:]] == list(chorales.VOICES)
    found = []
    for track in file.tracks[1:]:
        now, voice = 0, []
        for message in track:
            now += message.time
            if message.type in ("note_on", "note_off"):
                voice.append((message.type, message.note, now // 120))
        found.append(voice)
    assert found[0] == [
        ("note_on", 72, 0),
        ("note_off", 72, 2),
        ("note_on", 74, 2),
        ("note_off", 74, 3),
    ]
    assert found[2] == [("note_on", 64, 0), ("note_off", 64, 1)]
    assert file.length == pytest.approx(0.75)


def test_midi_files_become_sound_where_fluidsynth_is_installed(tmp_path, monkeypatch):
    pytest.importorskip("mido")
    chorales.write_midi(tmp_path / "one.mid", CHORALE[:3], beats_a_minute=60)
    sound = chorales.render_midi(tmp_path / "one.mid")
    if sound is None:
        assert shutil.which("fluidsynth") is None or not chorales.SOUND_FONT.exists()
    else:
        with wave.open(str(sound)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            assert file.getnframes() / file.getframerate() > 0.75 and np.abs(samples).max() > 500
    monkeypatch.setattr(chorales, "SOUND_FONT", tmp_path / "missing.sf2")
    assert chorales.render_midi(tmp_path / "one.mid") is None


def test_a_piano_roll_has_a_bar_for_each_note():
    figure = plot_piano_rolls([CHORALE[:3], CHORALE[:1]], ["three", "one"])
    first, second = figure.axes
    bars = [(bar.get_x(), bar.get_width(), bar.get_y() + 0.4) for bar in first.patches]
    assert bars[-2:] == [(0.0, 0.5, 72.0), (0.5, 0.25, 74.0)]  # the soprano is on top
    assert [text.get_text() for text in figure.legends[0].texts] == list(chorales.VOICES)
    assert len(first.patches) == 6 and len(second.patches) == 4
    assert (first.get_title(), second.get_xlabel()) == ("three", "quarters")
    with pytest.raises(ValueError, match="a title for each"):
        plot_piano_rolls([CHORALE], [])


def test_the_constraint_keeps_the_order_of_voices_and_sets_the_soprano():
    constraint = scripts.load("music").Melody()
    melody = to_ids(CHORALE[:2])[None, ::4]  # two sixteenths, the rest is free
    known = constraint.read(None, {"melody": tf.constant(melody)})
    logits = tf.zeros([1, 1, chorales.VOCAB_SIZE])
    for place, kind in ((0, None), (1, 4), (3, 6), (4, None), (8, 2), (12, 3), (13, 4)):
        history = tf.constant(to_ids(CHORALE)[None, None, :place])
        past = Past(tf.constant([[5]]), history, *map(tf.constant, (place + 1, 9)))
        found, _ = constraint.step(logits, past, (), known)
        allowed = np.flatnonzero(found.numpy()[0, 0] == 0)
        if kind is None:
            assert allowed.tolist() == [melody[0, place // 4]]
        else:
            first = chorales.FIRST_ID + kind * chorales.NOTES
            assert allowed.tolist() == list(range(first, first + chorales.NOTES))
