"""Sets of pictures, series, sound and rows of ids: read from files, or synthetic."""

import io

import numpy as np
import pytest
from helpers.example_files import digits, fashion, idx, wav, write
from support.sets import pictures, series
from support.sets.idx import read_idx
from support.sets.linear_forecast import LinearForecast
from support.sets.pictures import fashion_mnist, made_pictures
from support.sets.recall import recall_rows
from support.sets.series import electricity_transformer, made_series, split
from support.sets.sound import log_bands, read_wav
from support.sets.spoken_digits import WORDS, dialled_digits, joined, spoken_digits

ROWS = np.arange(60.0).reshape(20, 3) ** 2


@pytest.mark.parametrize("name", ["a.idx", "a.idx.gz"])
@pytest.mark.parametrize("code, kind", [(8, "u1"), (0x0B, ">i2"), (0x0D, ">f4")])
def test_an_array_in_the_idx_format_is_read(tmp_path, name, code, kind):
    array = np.arange(30).reshape(2, 3, 5).astype(kind)
    found = read_idx(write(tmp_path, {name: idx(array, code)}) / name)
    np.testing.assert_array_equal(found, array, strict=True)


def test_the_validation_set_is_a_part_of_the_training_set(tmp_path):
    count = pictures.VALID + 3
    sets = fashion_mnist(write(tmp_path, fashion("train", count) | fashion("t10k", 7)))
    shapes = [(pixels.shape, classes.shape) for pixels, classes in sets[:3]]
    assert shapes == [((n, 28, 28, 1), (n,)) for n in (3, pictures.VALID, 7)]
    assert sets.train[0].dtype == np.float32 and sets.train[1].dtype == np.int32
    both = np.concatenate([sets.train[0], sets.valid[0]])[:, 0, 0, 0]
    expected = np.sort(np.arange(count) % 256) / 255
    np.testing.assert_allclose(np.sort(both), expected, rtol=1e-6)  # each picture once
    np.testing.assert_array_equal(sets.test[1], np.arange(7))
    some = [(pixels[:2], classes[:2]) for pixels, classes in sets[:3]]
    np.testing.assert_equal([*fashion_mnist(tmp_path, limit=2)[:3]], some)


def test_discs_and_squares_are_filled_and_rings_and_frames_are_not():
    sets, few = made_pictures(600), made_pictures(600, limit=4)
    assert [len(part[0]) for part in sets[:3]] == [400, 100, 100]
    np.testing.assert_equal([*few[:3]], [(x[:4], classes[:4]) for x, classes in sets[:3]])
    assert sets.train[0].shape[1:] == (28, 28, 1) and 0 <= sets.train[0].min()
    bright = sets.train[0][..., 0].clip(0.5) - 0.5  # the shapes without the noise
    covered = {name: bright[sets.train[1] == n].mean() for n, name in enumerate(sets.labels)}
    assert covered["disc"] > 1.3 * covered["ring"]
    assert covered["square"] > 1.3 * covered["frame"] > 1.3 * covered["cross"] > 0


def test_one_token_of_a_row_is_marked_at_its_distance_and_is_the_label():
    ids, labels, distances = recall_rows(np.random.default_rng(3), 200, 9, [0, 2, 8], num_values=5)
    assert ids.shape == (200, 9) and ids.dtype == np.int32
    assert {*ids.ravel()} == {*range(1, 11)} and {*distances} == {0, 2, 8}
    rows, places = np.nonzero(ids > 5)
    np.testing.assert_array_equal(rows, np.arange(200))  # one in each row
    np.testing.assert_array_equal(places, 8 - distances)
    np.testing.assert_array_equal(ids[rows, places], labels + 6)


@pytest.mark.parametrize("name", ["ETTh1.csv", "ETTh1.csv.gz"])
def test_a_table_is_split_in_order_and_standardised_by_its_first_part(tmp_path, monkeypatch, name):
    monkeypatch.setattr(series, "ETT_ROWS", (10, 4, 5))
    lines = ["date,HUFL,HULL,OT"]
    lines += [f"2016-07-01 {hour}:00,{a},{b},{c}" for hour, (a, b, c) in enumerate(ROWS)]
    sets = electricity_transformer(write(tmp_path, {name: "\n".join([*lines, ""])}))
    expected = np.float32((ROWS - ROWS[:10].mean(axis=0)) / ROWS[:10].std(axis=0))
    whole = np.concatenate(sets[:3])
    np.testing.assert_allclose(whole, expected[:19], rtol=1e-5, strict=True)
    assert sets.names == ("HUFL", "HULL", "OT") and [len(x) for x in sets[:3]] == [10, 4, 5]
    assert not split(np.ones((9, 1)), (3, 3, 3), ["a"]).train.any()  # constant series stay finite
    # Only the past of a window reaches into the previous part.
    parts = sets.windows(past=6, future=2)
    assert {n: len(part[0]) for n, part in parts.items()} == {"train": 3, "valid": 3, "test": 4}
    for part, row, start in (("valid", 0, 4), ("valid", -1, 6), ("test", 0, 8), ("test", -1, 11)):
        window = np.concatenate([side[row] for side in parts[part]])
        np.testing.assert_array_equal(window, whole[start : start + 8])
    few = {n: tuple(side[:1] for side in part) for n, part in parts.items()}
    np.testing.assert_equal(sets.windows(6, 2, limit=1), few)
    before, _ = sets.windows(past=8, future=2)["test"]  # longer than the previous part
    np.testing.assert_array_equal(before[0], whole[6:14])


def test_made_series_repeat_themselves_daily():
    sets = made_series()
    rows = np.concatenate(sets[:3])
    assert len(rows) == 24 * 150 and len(sets.valid) == len(sets.test) == 24 * 30
    day, half = (np.square(rows[n:] - rows[:-n]).mean() for n in (24, 12))
    assert day < half / 3


def test_a_linear_forecast_has_the_least_squares_weights():
    draw = np.random.default_rng(1)
    past, future = draw.normal(size=(50, 5, 3)), draw.normal(size=(50, 2, 3))
    level = past.mean(axis=1, keepdims=True)
    x = (past - level).transpose(0, 2, 1).reshape(-1, 5)
    y = (future - level).transpose(0, 2, 1).reshape(-1, 2)
    stacked = np.concatenate([x, np.sqrt(7) * np.eye(5)]), np.concatenate([y, np.zeros((5, 2))])
    expected = np.linalg.lstsq(*stacked, rcond=None)[0]
    found = LinearForecast(past, future, ridge=7.0).weights
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_samples_of_a_wav_file_are_read(tmp_path):
    data = wav([0, 2**14, -(2**15)], rate=16000)
    for file in (write(tmp_path, {"a.wav": data}) / "a.wav", io.BytesIO(data)):
        np.testing.assert_equal(read_wav(file), (np.array([0, 0.5, -1], "float32"), 16000))


@pytest.mark.parametrize("band", [0, 7, 23])
def test_a_tone_is_loudest_in_its_band(band):
    width = 4000 * (5 / 128)  # 24 bands of 5 frequencies each, of 128
    tone = np.sin(2 * np.pi * (band + 0.6) * width * np.arange(4000) / 8000)
    frames = log_bands(tone)
    assert frames.shape == (1 + (4000 - 256) // 80, 24) and frames.dtype == np.float32
    assert (frames.argmax(axis=1) == band).all()


@pytest.mark.parametrize("samples", [np.zeros(500), np.zeros(0), np.ones(10)], ids=len)
def test_silence_and_short_sound_have_frames_that_are_not_zero(samples):
    frames = log_bands(samples, bands=8)
    assert len(frames) >= 1 and frames.any(axis=1).all() and np.isfinite(frames).all()


def test_recordings_are_split_by_their_number(tmp_path):
    names = ["3_ann_lee_0.wav", "3_bob_4.wav", "7_bob_5.wav", "0_bob_9.wav", "9_bob_10.wav"]
    files = {name: wav([100 * number] * 3) for number, name in enumerate(names)}
    sets = spoken_digits(write(tmp_path, digits(files | {"README.md": b"text"})))
    found = [sorted((one.word, one.speaker) for one in part) for part in sets]
    assert found == [
        [("nine", "bob")],
        [("seven", "bob"), ("zero", "bob")],
        [("three", "ann_lee"), ("three", "bob")],
    ]
    np.testing.assert_allclose(sets.train[0].samples, [400 / 2**15] * 3)


def test_each_key_has_its_two_tones():
    sets = dialled_digits()
    assert {one.word for one in sets.train} == set(WORDS)
    for word, tones in {"one": (697, 1209), "six": (770, 1477), "zero": (941, 1336)}.items():
        (one, *_) = [one for one in sets.test if one.word == word]
        power = np.abs(np.fft.rfft(one.samples, 8000))  # a value for each hertz
        highest = power[:1075].argmax(), 1075 + power[1075:].argmax()
        np.testing.assert_allclose(highest, tones, atol=5)


def test_sequences_of_digits_are_of_one_speaker_and_match_their_text():
    recordings = dialled_digits().valid
    sounds, texts = joined(recordings, 40, shortest=2, longest=4)
    assert {len(text.split()) for text in texts} == {2, 3, 4} and len(sounds) == 40
    assert joined(recordings, 40, 2, 4, seed=1)[1] != texts
    for sound, text in zip(sounds[:5], texts[:5], strict=True):
        begins = [r for r in recordings if np.array_equal(sound[: len(r.samples)], r.samples)]
        ends = [r for r in recordings if np.array_equal(sound[-len(r.samples) :], r.samples)]
        assert (begins[0].word, ends[0].word) == (text.split()[0], text.split()[-1])
        assert begins[0].speaker == ends[0].speaker
