"""Sets of pictures, series, sound and rows of ids: read from files, or synthetic."""

import gzip
import io
import tarfile
import wave

import numpy as np
import pytest
from support.sets import pictures, series
from support.sets.idx import read_idx
from support.sets.linear_forecast import LinearForecast
from support.sets.pictures import fashion_mnist, made_pictures
from support.sets.recall import recall_rows
from support.sets.series import electricity_transformer, made_series, split, windows
from support.sets.sound import log_bands, read_wav
from support.sets.spoken_digits import WORDS, dialled_digits, joined, spoken_digits

ROWS = np.arange(60.0).reshape(20, 3) ** 2


def idx(array, code):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.tobytes()


def packed(name, data):
    return gzip.compress(data, 1) if name.endswith(".gz") else data


@pytest.mark.parametrize("name", ["a.idx", "a.idx.gz"])
@pytest.mark.parametrize("code, kind", [(8, "u1"), (0x0B, ">i2"), (0x0D, ">f4")])
def test_an_array_in_the_idx_format_is_read(tmp_path, name, code, kind):
    array = np.arange(30).reshape(2, 3, 5).astype(kind)
    (tmp_path / name).write_bytes(packed(name, idx(array, code)))
    found = read_idx(tmp_path / name)
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


WHOLE = idx(np.zeros((2, 3), "u1"), 8)


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "is not in the IDX format"),
        (b"RIFF....", "is not in the IDX format"),
        (b"\0\0\x07\1\0\0\0\0", "is not in the IDX format"),
        (WHOLE[:7], "is not whole"),
        (WHOLE[:13], "is not whole"),
    ],
)
def test_other_formats_and_cut_files_are_refused(tmp_path, data, message):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "a")


def write_pictures(folder, part, count, size=28):
    """Writes two files as in Fashion-MNIST. Every pixel of a picture is its number."""
    numbers = np.arange(count)
    pixels = np.tile((numbers % 256).astype("u1")[:, None, None], (1, size, size))
    for name, array in (("images-idx3", pixels), ("labels-idx1", (numbers % 10).astype("u1"))):
        (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array, 8), 1))


def test_the_validation_set_is_a_part_of_the_training_set(tmp_path):
    count = pictures.VALID + 3
    write_pictures(tmp_path, "train", count)
    write_pictures(tmp_path, "t10k", 7)
    sets = fashion_mnist(tmp_path)
    assert [len(part[0]) for part in sets[:3]] == [3, pictures.VALID, 7]
    assert len(sets.labels) == 10
    both = np.concatenate([sets.train[0], sets.valid[0]])[:, 0, 0, 0]
    expected = np.sort(np.arange(count) % 256) / 255
    np.testing.assert_allclose(np.sort(both), expected, rtol=1e-6)  # each picture once
    for pixels, classes in sets[:3]:
        assert pixels.shape[1:] == (28, 28, 1) and pixels.dtype == np.float32
        assert classes.dtype == np.int32 and classes.shape == (len(pixels),)
    np.testing.assert_array_equal(sets.test[1], np.arange(7))
    some = fashion_mnist(tmp_path, limit=2)
    assert [len(part[0]) for part in some[:3]] == [2, 2, 2]
    np.testing.assert_array_equal(some.valid[0], sets.valid[0][:2])


def test_made_pictures_are_the_same_in_every_call():
    one, two = made_pictures(60), made_pictures(60, limit=4)
    assert [len(part[0]) for part in one[:3]] == [40, 10, 10]
    for whole, some in zip(one[:3], two[:3], strict=True):
        np.testing.assert_array_equal(whole[0][:4], some[0])
        np.testing.assert_array_equal(whole[1][:4], some[1])
        assert whole[0].shape[1:] == (28, 28, 1) and 0 <= whole[0].min() <= whole[0].max() <= 1
    assert set(one.train[1]) == set(range(len(one.labels)))


def test_discs_and_squares_are_filled_and_rings_and_frames_are_not():
    sets = made_pictures(600)
    bright = sets.train[0][..., 0].clip(0.5) - 0.5  # the shapes without the noise
    covered = {name: bright[sets.train[1] == n].mean() for n, name in enumerate(sets.labels)}
    assert covered["disc"] > 1.3 * covered["ring"]
    assert covered["square"] > 1.3 * covered["frame"] > 1.3 * covered["cross"] > 0


def test_other_sizes_and_too_few_pictures_are_refused(tmp_path):
    write_pictures(tmp_path, "train", 5, size=32)
    with pytest.raises(ValueError, match="does not hold Fashion-MNIST"):
        fashion_mnist(tmp_path)
    with pytest.raises(ValueError, match="at least 6"):
        made_pictures(5)


def test_one_token_of_a_row_is_marked_at_its_distance_and_is_the_label():
    ids, labels, distances = recall_rows(np.random.default_rng(3), 200, 9, [0, 2, 8], num_values=5)
    assert ids.shape == (200, 9) and ids.dtype == np.int32
    assert ids.min() == 1 and ids.max() == 10
    rows, places = np.nonzero(ids > 5)
    np.testing.assert_array_equal(rows, np.arange(200))  # one in each row
    np.testing.assert_array_equal(places, 8 - distances)
    np.testing.assert_array_equal(ids[rows, places], labels + 6)
    assert set(distances) == {0, 2, 8} and set(labels) == set(range(5))
    for distance in (-1, 9):
        with pytest.raises(ValueError, match=r"must be in \[0, 9\)"):
            recall_rows(np.random.default_rng(3), 2, 9, [1, distance])


def test_windows_are_all_pairs_of_past_and_future():
    rows = np.arange(22).reshape(11, 2)
    before, after = windows(rows, past=5, future=3)
    assert before.shape == (4, 5, 2) and after.shape == (4, 3, 2)
    for start in range(4):
        np.testing.assert_array_equal(before[start], rows[start : start + 5])
        np.testing.assert_array_equal(after[start], rows[start + 5 : start + 8])
    for past, future in ((9, 3), (0, 3), (3, 0)):
        with pytest.raises(ValueError, match="hold no window"):
            windows(rows, past, future)


def test_a_series_is_split_in_order_and_standardised_by_the_first_part():
    sets = split(ROWS, (10, 4, 5), "abc")
    expected = (ROWS - ROWS[:10].mean(axis=0)) / ROWS[:10].std(axis=0)
    whole = np.concatenate(sets[:3])
    np.testing.assert_allclose(whole, expected[:19], rtol=1e-5)
    assert [len(part) for part in sets[:3]] == [10, 4, 5] and sets.names == ("a", "b", "c")
    assert whole.dtype == np.float32
    assert not split(np.ones((9, 1)), (3, 3, 3), ["a"]).train.any()  # constant series stay finite
    with pytest.raises(ValueError, match="21 rows are needed, but there are 20"):
        split(ROWS, (10, 6, 5), "abc")


def test_only_the_past_of_a_window_reaches_into_the_previous_part():
    sets = split(ROWS, (10, 4, 5), "abc")
    whole = np.concatenate(sets[:3])
    parts = sets.windows(past=6, future=2)
    counts = {name: len(part[0]) for name, part in parts.items()}
    assert counts == {"train": 10 - 6 - 2 + 1, "valid": 4 - 2 + 1, "test": 5 - 2 + 1}
    np.testing.assert_array_equal(parts["valid"][0][0], whole[4:10])
    np.testing.assert_array_equal(parts["valid"][1][-1], whole[12:14])
    np.testing.assert_array_equal(parts["test"][1][0], whole[14:16])
    np.testing.assert_array_equal(parts["test"][1][-1], whole[17:19])
    some = sets.windows(6, 2, limit=1)
    np.testing.assert_array_equal(some["test"][0], parts["test"][0][:1])
    before, _ = sets.windows(past=8, future=2)["test"]  # longer than the previous part
    np.testing.assert_array_equal(before[0], whole[6:14])


@pytest.mark.parametrize("name", ["ETTh1.csv", "ETTh1.csv.gz"])
def test_a_table_is_read_and_split(tmp_path, monkeypatch, name):
    monkeypatch.setattr(series, "ETT_ROWS", (10, 4, 5))
    lines = ["date,HUFL,HULL,OT"]
    lines += [f"2016-07-01 {hour}:00,{a},{b},{c}" for hour, (a, b, c) in enumerate(ROWS)]
    (tmp_path / name).write_bytes(packed(name, "\n".join([*lines, ""]).encode()))
    sets = electricity_transformer(tmp_path)
    assert sets.names == ("HUFL", "HULL", "OT")
    for found, expected in zip(sets[:3], split(ROWS, (10, 4, 5), "abc")[:3], strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "has no table"),
        ("date\n1\n", "has no table"),
        ("date,a\n1,2\n1,2,3\n", "line 3: 3 columns, but 2 names"),
        ("date,a\n1,two\n", "could not convert"),
        ("date,a\n1,nan\n", "not finite"),
    ],
)
def test_a_file_without_a_table_is_refused(tmp_path, text, problem):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=problem):
        series.read_table(tmp_path / "a.csv")


def test_made_series_repeat_themselves_daily_and_are_the_same_in_every_call():
    sets = made_series()
    np.testing.assert_array_equal(sets.train, made_series().train)
    rows = np.concatenate(sets[:3])
    assert len(rows) == 24 * 150 and len(sets.valid) == len(sets.test) == 24 * 30
    day = np.square(rows[24:] - rows[:-24]).mean()
    half = np.square(rows[12:] - rows[:-12]).mean()
    assert day < half / 3


def test_a_linear_forecast_continues_a_cycle_at_any_level():
    draw = np.random.default_rng(0)
    rows = np.tile(draw.normal(size=(6, 2)), (20, 1))  # two series that repeat after 6 steps
    before, after = windows(rows, past=12, future=4)
    forecast = LinearForecast(before, after, ridge=1e-6)
    found = forecast(before[3:5] + 100)
    np.testing.assert_allclose(found, after[3:5] + 100, atol=1e-3)
    assert found.dtype == np.float32 and forecast.weights.shape == (12, 4)


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
    for shape in ((4, 2, 2), (5, 2, 3), (4, 2)):
        with pytest.raises(ValueError, match=r"must be \(N, S, F\) and \(N, T, F\)"):
            LinearForecast(np.zeros((4, 6, 3)), np.zeros(shape))


def wav(samples, channels=1, width=2, rate=8000):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((channels, width, rate, 0, "NONE", ""))
        sound.writeframes(np.asarray(samples, "<i2").tobytes())
    return file.getvalue()


def test_samples_of_a_wav_file_are_read(tmp_path):
    data = wav([0, 2**14, -(2**15)], rate=16000)
    (tmp_path / "a.wav").write_bytes(data)
    for file in (tmp_path / "a.wav", io.BytesIO(data)):
        samples, rate = read_wav(file)
        np.testing.assert_array_equal(samples, np.array([0, 0.5, -1], "float32"))
        assert rate == 16000 and samples.dtype == np.float32


@pytest.mark.parametrize(
    "data, message",
    [
        (wav([1, 2], channels=2), "one channel and 2 bytes per sample"),
        (wav([1, 2], width=1), "one channel and 2 bytes per sample"),
        (b"", "not a readable WAV file"),
        (b"no sound at all", "not a readable WAV file"),
    ],
)
def test_other_sound_formats_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        read_wav(io.BytesIO(data))


@pytest.mark.parametrize("band", [0, 7, 23])
def test_a_tone_is_loudest_in_its_band(band):
    width = 4000 * (5 / 128)  # 24 bands of 5 frequencies each, of 128
    tone = np.sin(2 * np.pi * (band + 0.6) * width * np.arange(4000) / 8000)
    frames = log_bands(tone)
    assert frames.shape == (1 + (4000 - 256) // 80, 24) and frames.dtype == np.float32
    assert (frames.argmax(axis=1) == band).all()


def test_silence_and_short_sound_have_frames_that_are_not_zero():
    for samples in (np.zeros(500), np.zeros(0), np.ones(10)):
        frames = log_bands(samples, bands=8)
        assert len(frames) >= 1 and frames.any(axis=1).all() and np.isfinite(frames).all()
    for samples, bands in ((np.zeros((2, 300)), 24), (np.zeros(300), 129)):
        with pytest.raises(ValueError, match="samples must have one axis"):
            log_bands(samples, bands)


def archive(folder, files):
    with tarfile.open(folder / "fsdd-recordings.tar", "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"recordings/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_recordings_are_split_by_their_number(tmp_path):
    names = ["3_ann_lee_0.wav", "3_bob_4.wav", "7_bob_5.wav", "0_bob_9.wav", "9_bob_10.wav"]
    files = {name: wav([100 * number] * 3) for number, name in enumerate(names)}
    archive(tmp_path, files | {"README.md": b"text"})
    sets = spoken_digits(tmp_path)
    found = [sorted((one.word, one.speaker) for one in part) for part in sets]
    assert found == [
        [("nine", "bob")],
        [("seven", "bob"), ("zero", "bob")],
        [("three", "ann_lee"), ("three", "bob")],
    ]
    np.testing.assert_allclose(sets.train[0].samples, [400 / 2**15] * 3)


@pytest.mark.parametrize(
    "name, data, problem",
    [
        ("three_bob_1.wav", wav([1]), "recordings/three_bob_1.wav must be called DIGIT_SPEAKER"),
        ("3_bob.wav", wav([1]), "recordings/3_bob.wav must be called DIGIT_SPEAKER_NUMBER"),
        ("12_bob_1.wav", wav([1]), "recordings/12_bob_1.wav must be called DIGIT_SPEAKER_NUMBER"),
        ("1_bob_1.wav", b"", r"1_bob_1\.wav: .* not a readable WAV file"),
        ("1_bob_1.wav", wav([1], rate=16000), "has 16000 samples a second"),
        ("1_bob_1.wav", wav([1]), "train: 0, valid: 0, test: 1"),
    ],
)
def test_invalid_recordings_are_refused(tmp_path, name, data, problem):
    archive(tmp_path, {name: data})
    with pytest.raises(ValueError, match=problem):
        spoken_digits(tmp_path)


def test_each_key_has_its_two_tones():
    sets = dialled_digits()
    assert {one.word for one in sets.train} == set(WORDS)
    np.testing.assert_array_equal(sets.test[0].samples, dialled_digits().test[0].samples)
    for word, tones in {"one": (697, 1209), "six": (770, 1477), "zero": (941, 1336)}.items():
        (one, *_) = [one for one in sets.test if one.word == word]
        power = np.abs(np.fft.rfft(one.samples, 8000))  # a value for each hertz
        low, high = power[:1075].argmax(), 1075 + power[1075:].argmax()
        assert abs(low - tones[0]) <= 5 and abs(high - tones[1]) <= 5


def test_sequences_of_digits_are_of_one_speaker_and_match_their_text():
    recordings = dialled_digits().valid
    sounds, texts = joined(recordings, 40, shortest=2, longest=4)
    assert {len(text.split()) for text in texts} == {2, 3, 4} and len(sounds) == 40
    again = joined(recordings, 40, 2, 4)
    assert again[1] == texts and all(map(np.array_equal, again[0], sounds))
    assert joined(recordings, 40, 2, 4, seed=1)[1] != texts
    for sound, text in zip(sounds[:5], texts[:5], strict=True):
        begins = [r for r in recordings if np.array_equal(sound[: len(r.samples)], r.samples)]
        ends = [r for r in recordings if np.array_equal(sound[-len(r.samples) :], r.samples)]
        assert (begins[0].word, ends[0].word) == (text.split()[0], text.split()[-1])
        assert begins[0].speaker == ends[0].speaker
    for shortest, longest in ((0, 3), (4, 3)):
        with pytest.raises(ValueError, match="1 <= shortest <= longest"):
            joined(recordings, 3, shortest, longest)
    with pytest.raises(ValueError, match="must be recordings"):
        joined([], 3, 1, 2)
