"""Sounds of digits: read from an archive or made, and joined to sequences."""

import io
import tarfile

import numpy as np
import pytest
from support.sets.spoken_digits import WORDS, dialled_digits, joined, spoken_digits
from test_sound import wav


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


@pytest.mark.parametrize("name", ["three_bob_1.wav", "3_bob.wav", "12_bob_1.wav"])
def test_other_names_are_told(tmp_path, name):
    archive(tmp_path, {name: wav([1])})
    with pytest.raises(ValueError, match=f"recordings/{name} must be called DIGIT_SPEAKER_NUMBER"):
        spoken_digits(tmp_path)


@pytest.mark.parametrize(
    "data, problem",
    [(b"", r"1_bob_1\.wav: .* no WAV file"), (wav([1], rate=16000), "has 16000 samples a second")],
)
def test_other_sounds_are_told(tmp_path, data, problem):
    archive(tmp_path, {"1_bob_1.wav": data})
    with pytest.raises(ValueError, match=problem):
        spoken_digits(tmp_path)


def test_an_empty_set_is_told(tmp_path):
    archive(tmp_path, {"1_bob_1.wav": wav([1])})
    with pytest.raises(ValueError, match="train: 0, valid: 0, test: 1"):
        spoken_digits(tmp_path)


def test_each_key_has_its_two_tones():
    sets = dialled_digits()
    assert {one.word for one in sets.train} == set(WORDS)
    np.testing.assert_array_equal(sets.test[0].samples, dialled_digits().test[0].samples)
    for word, tones in {"one": (697, 1209), "six": (770, 1477), "zero": (941, 1336)}.items():
        (one, *_) = [one for one in sets.test if one.word == word]
        power = np.abs(np.fft.rfft(one.samples, 8000))  # a number for each hertz
        low, high = power[:1075].argmax(), 1075 + power[1075:].argmax()
        assert abs(low - tones[0]) <= 5 and abs(high - tones[1]) <= 5


def test_sequences_are_of_one_speaker_and_say_what_is_in_them():
    recordings = dialled_digits().valid
    sounds, texts = joined(recordings, 40, shortest=2, longest=4)
    lengths = {len(text.split()) for text in texts}
    assert lengths == {2, 3, 4} and len(sounds) == 40
    again = joined(recordings, 40, 2, 4)
    assert again[1] == texts and all(map(np.array_equal, again[0], sounds))
    assert joined(recordings, 40, 2, 4, seed=1)[1] != texts
    for sound, text in zip(sounds[:5], texts[:5], strict=True):
        first, last = text.split()[0], text.split()[-1]
        begins = [r for r in recordings if np.array_equal(sound[: len(r.samples)], r.samples)]
        ends = [r for r in recordings if np.array_equal(sound[-len(r.samples) :], r.samples)]
        assert begins[0].word == first and ends[0].word == last
        assert begins[0].speaker == ends[0].speaker


@pytest.mark.parametrize("shortest, longest", [(0, 3), (4, 3)])
def test_impossible_sequences_are_refused(shortest, longest):
    with pytest.raises(ValueError, match="1 <= shortest <= longest"):
        joined(dialled_digits().valid, 3, shortest, longest)
    with pytest.raises(ValueError, match="must be recordings"):
        joined([], 3, 1, 2)
