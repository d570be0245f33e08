"""Transcripts of the published Whisper base model, compared with faster-whisper.

The environment variable `KERAS_TRANSFORMER_WHISPER` names a CTranslate2 folder that also holds
recordings (*.wav).
"""

import os
import pathlib
import wave

import pytest

from keras_transformer.export.runtime import Transcriber
from keras_transformer.importers.__main__ import main

FOLDER = os.environ.get("KERAS_TRANSFORMER_WHISPER")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not FOLDER, reason="KERAS_TRANSFORMER_WHISPER names no weights"),
]


@pytest.fixture(scope="module", params=[1, 5])
def both(request, tmp_path_factory):
    """Returns two functions from a path and options to segments: faster-whisper's and ours."""
    engine = pytest.importorskip("faster_whisper")
    out, width = tmp_path_factory.mktemp("whisper") / "out", request.param
    command = ["ctranslate2", FOLDER, str(out), "--export", "onnx", "--quiet"]
    assert main([*command, "--beam-width", str(width)]) == 0
    model = engine.WhisperModel(FOLDER, device="cpu", compute_type="float32")
    transcriber = Transcriber(out)

    def theirs(path, **options):
        return list(model.transcribe(str(path), beam_size=width, **options)[0])

    return theirs, lambda path, **options: list(transcriber.transcribe(path, **options))


def test_an_int8_import_has_a_third_of_the_size(tmp_path):
    command = ["ctranslate2", FOLDER, str(tmp_path / "out"), "--export", "onnx", "--quiet"]
    assert main([*command, "--precision", "int8"]) == 0
    assert (tmp_path / "out" / "model.onnx").stat().st_size < 120e6
    text = "".join(one.text for one in Transcriber(tmp_path / "out").transcribe(recordings()[0]))
    assert text.lower().replace(".", ",").startswith(" ever tried, ever failed,")


def recordings():
    return sorted(pathlib.Path(FOLDER or "none").glob("*.wav"))


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_texts_times_and_scores_match_faster_whisper(both, path):
    theirs, ours = (transcribe(path, word_timestamps=False) for transcribe in both)
    assert [segment.text for segment in ours] == [segment.text for segment in theirs]
    with wave.open(str(path)) as sound:
        length = sound.getnframes() / sound.getframerate()
    for one, other in zip(ours, theirs, strict=True):
        found = one.start, one.end, one.average_log_probability, one.no_speech_probability
        end = min(other.end, length)  # faster-whisper's last segment may end after the sound
        expected = other.start, end, other.avg_logprob, other.no_speech_prob
        assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_word_times_match_faster_whisper(both, path):
    theirs, ours = (transcribe(path, word_timestamps=True) for transcribe in both)
    theirs, ours = ([word for segment in all for word in segment.words] for all in (theirs, ours))
    assert [word.text for word in ours] == [word.word for word in theirs]
    gaps = [
        max(abs(one.start - other.start), abs(one.end - other.end))
        for one, other in zip(ours, theirs, strict=True)
    ]
    assert sum(gap <= 0.1 for gap in gaps) >= 0.95 * len(gaps)
