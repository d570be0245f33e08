"""Batches of spoken sequences, the sound of a spectrogram, and joined recordings."""

import numpy as np
import pytest
from support.sets.sound import HOP, WINDOW, log_bands, sound_of
from support.sets.spoken_digits import (
    PAUSE,
    WORDS,
    Recording,
    dialled_digits,
    joined,
    sequences,
)
from support.sets.spoken_sequences import (
    BANDS,
    GROUP,
    FreshSequences,
    is_new,
    padded,
    places_of,
    sound_of_parts,
    spoken_batch,
    text_of,
    word_tokenizer,
)
from support.units import joined_units, mean_frames, unit, units

SPEAKERS = ["line 0", "line 1", "line 2"]


@pytest.fixture(scope="module")
def sets():
    return dialled_digits()


def test_sequences_are_the_joined_sounds(sets):
    drawn = sequences(sets.valid, 7, 2, 3, seed=5)
    sounds, texts = joined(sets.valid, 7, 2, 3, seed=5)
    for parts, samples, text in zip(drawn, sounds, texts, strict=True):
        np.testing.assert_array_equal(sound_of_parts(parts), samples)
        assert [part.word for part in parts] == f" {PAUSE} ".join(text.split()).split()
        assert len({part.speaker for part in parts}) == 1


def test_the_sound_of_a_spectrogram_has_this_spectrogram():
    time = np.arange(50 * HOP + WINDOW) / 8000
    samples = 0.3 * np.sin(2 * np.pi * (400 + 900 * time) * time) + 0.1 * np.sin(7001 * time)
    frames = log_bands(samples, BANDS)
    found = sound_of(frames)
    assert found.shape == samples.shape and found.dtype == np.float32
    loud = frames > frames.max() - 1  # within 22 dB of the loudest
    assert np.abs(log_bands(found, BANDS) - frames)[loud].mean() < 0.05
    without = sound_of(frames, rounds=1)  # random phases
    assert np.abs(log_bands(without, BANDS) - frames)[loud].mean() > 0.1


def test_a_place_is_a_token_and_the_share_of_its_time():
    durations = np.array([0.0, 11.0, 7.5, 13.0, 0.0])
    places = places_of(durations)
    samples = round(durations.sum() * HOP)
    frames = log_bands(np.zeros(samples), BANDS)
    assert places.dtype == np.float32 and len(places) == -(-len(frames) // GROUP)
    # The middle of the first four frames is the middle of samples 0 to 495.
    middle = (WINDOW + 3 * HOP) / 2 / HOP
    assert places[0] == pytest.approx(1 + middle / 11)
    assert places[3] == pytest.approx(2 + (middle + 12 - 11) / 7.5)
    assert (np.diff(places) > 0).all() and places.max() < 4
    (alone,) = places_of(np.array([0.0, 1.0]))  # a frame is longer than the sound
    assert 1 < alone < 2


def test_a_batch_has_a_place_for_each_group_of_frames(sets):
    tokenizer = word_tokenizer(SPEAKERS)
    drawn = sequences(sets.train, 5, 1, 3)
    inputs, targets, weights = spoken_batch(drawn, tokenizer)
    for row, parts in enumerate(drawn):
        frames = log_bands(sound_of_parts(parts), BANDS)
        ids = [*tokenizer.encode(text_of(parts)), 3]
        assert len(ids) == 2 + len(parts) and 1 not in ids
        np.testing.assert_array_equal(inputs["source_ids"][row].nonzero()[0], range(len(ids)))
        np.testing.assert_array_equal(targets["frames"][row][: len(frames)], frames)
        assert weights["frames"][row].sum() == len(frames)
        assert weights["durations"][row].sum() == len(ids)
        assert targets["durations"][row].sum() * HOP == pytest.approx(len(sound_of_parts(parts)))
        assert (inputs["places"][row] >= 0).sum() == -(-len(frames) // GROUP)
    assert targets["frames"].shape[1] == GROUP * inputs["places"].shape[1]


def test_epochs_have_new_sequences_and_seeds_repeat_them(sets):
    data, again = (FreshSequences(sets.train, word_tokenizer(SPEAKERS), 3, 7) for _ in range(2))
    first = data[2][1]["frames"]
    assert len(data) == 3 and len(first) == 48 // 3
    np.testing.assert_array_equal(first, again[2][1]["frames"])
    data.on_epoch_end()
    assert first.shape != data[2][1]["frames"].shape or (first != data[2][1]["frames"]).any()


def test_each_speaker_has_two_new_digits_and_rows_are_padded_to_a_multiple(sets):
    new = {(one.speaker, one.word) for one in sets.test if is_new(one, SPEAKERS)}
    assert new == {(f"line {n}", WORDS[digit]) for n in range(3) for digit in (n, n + 5)}
    found = padded([[1], [2, 3, 4, 5]], -1, 3)
    np.testing.assert_array_equal(found, [[1, -1, -1, -1, -1, -1], [2, 3, 4, 5, -1, -1]])


def test_units_of_other_speakers_replace_missing_ones():
    random = np.random.default_rng(3)
    eva, ada = (
        Recording(random.normal(size=size).astype("float32"), "one", name)
        for size, name in ((WINDOW + 4 * HOP, "Eva"), (WINDOW + 10 * HOP, "Ada"))
    )
    found = units([eva, ada])
    assert unit(found, ada) == [ada] and unit(found, eva._replace(speaker="Mia")) == [eva, ada]
    np.testing.assert_allclose(mean_frames([eva]), log_bands(eva.samples, BANDS))
    mean = mean_frames([eva, ada])
    assert len(mean) == 8  # of 5 and 11 frames
    ends = [log_bands(one.samples, BANDS)[[0, -1]] for one in (eva, ada)]
    np.testing.assert_allclose(mean[[0, -1]], np.mean(ends, axis=0), rtol=1e-6)


def test_joined_units_speak_each_sequence(sets):
    drawn = sequences(sets.test, 3, 2, 2)
    every = [part for parts in drawn for part in parts]
    sounds = joined_units(every, [[part] for part in every], np.random.default_rng(3))
    for one, *made in zip(every, *sounds.values(), strict=True):
        same = [part for part in every if (part.speaker, part.word) == (one.speaker, one.word)]
        assert any(np.array_equal(made[0], part.samples) for part in same)
        length = len(mean_frames(same))
        assert [len(some) for some in made[1:]] == [(length - 1) * HOP + WINDOW] * 2
    assert list(sounds) == ["training recordings", "mean recordings", "mean spectra"]
    flat = [log_bands(some, BANDS).std(axis=0).mean() for some in sounds["mean spectra"]]
    mean = [log_bands(some, BANDS).std(axis=0).mean() for some in sounds["mean recordings"]]
    assert np.mean(flat) < np.mean(mean)
