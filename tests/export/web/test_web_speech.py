"""Speech in Node.js and Chromium: features, texts and times equal Python's `Transcriber`."""

import json
import os

import numpy as np
import pytest
from helpers import node, whisper_folder

from keras_transformer.export.runtime import Transcriber
from keras_transformer.sound.features import FeatureReader

pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")
pytestmark = pytest.mark.full

MELS = whisper_folder.SIZES["num_mel_bins"]
SECONDS = 0.5
CALLS = [{}, {"language": "de", "task": "translate"}]
REFUSED = {
    "RangeError: The model does not know the language 'fr'. It knows en, de.": {"language": "fr"},
    'RangeError: `task` must be "transcribe" or "translate", got "sing".': {"task": "sing"},
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A WAV file at 16 kHz, loud and faint noise in turn."""
    path = tmp_path_factory.mktemp("sound") / "a.wav"
    draw = np.random.default_rng(0)
    loudness = np.repeat(10.0 ** draw.uniform(-3, -0.5, 20), int(16_000 * SECONDS) // 20)
    soundfile.write(path, draw.normal(0, 1, len(loudness)) * loudness, 16_000, "PCM_16")
    return path


NAMES = {  # of a segment in JavaScript, and its attributes in Python
    "start": "start",
    "end": "end",
    "averageLogProbability": "average_log_probability",
    "noSpeechProbability": "no_speech_probability",
}


def expected(sound, language=None, task="transcribe"):
    options = {"language": language, "task": task, "temperatures": (0.0,)}
    segments = Transcriber(whisper_folder.artefact(), threads=1).transcribe(sound, **options)
    return list(segments), segments.language


def test_node_transcribes_as_python_does(node_folder, sound):
    samples = soundfile.read(sound, dtype="float32")[0].tolist()
    calls = [*CALLS, *REFUSED.values()]
    request = {"folder": str(whisper_folder.artefact()), "samples": samples, "mels": MELS}
    found = node.run(node_folder, "transcribe.js", {**request, "calls": calls})
    reader = FeatureReader(sound, MELS)
    features = np.array(found["features"]).reshape(-1, MELS)
    np.testing.assert_allclose(features, reader.window(0, reader.frames), atol=1e-4)
    for call, result in zip(CALLS, found["calls"], strict=False):
        segments, language = expected(sound, **call)
        assert [one["text"] for one in result["segments"]] == [one.text for one in segments]
        numbers = [[one[name] for name in NAMES] for one in result["segments"]]
        others = [[getattr(one, name) for name in NAMES.values()] for one in segments]
        np.testing.assert_allclose(numbers, others, atol=1e-4)
        first, *_, last = result["progress"]
        assert (first["position"], last["position"], last["duration"]) == (0, SECONDS, SECONDS)
        assert len(segments) > 1 and last["language"] == language
    assert [call["error"] for call in found["calls"][len(CALLS) :]] == list(REFUSED)


def test_the_page_transcribes_files_and_recordings(node_folder, sound, tmp_path):
    for name in ("transcribe.html", "page", "service_worker.js", "src", "vendor"):
        os.symlink(node_folder / name, tmp_path / name)
    os.symlink(whisper_folder.artefact(), tmp_path / "model")
    models = {"models": [], "speech": [{"name": "Tiny", "url": "model"}]}
    (tmp_path / "models.json").write_text(json.dumps(models))
    microphone = [
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={sound}",
    ]
    request = {
        "site": str(tmp_path),
        "chromium": node.chromium(),
        "arguments": [*node.CHROMIUM_ARGUMENTS, *microphone],
        "profile": str(tmp_path / "profile"),
        "shots": str(tmp_path),
        "sound": str(sound),
        "seconds": 1,
    }
    found = node.run(node_folder, "transcribe_page.js", request, timeout=300)
    segments, _ = expected(sound)
    texts = [f"0:0{one.start:.1f} to 0:0{one.end:.1f} {one.text.strip()}" for one in segments]
    assert found["chosen"] == texts and found["dropped"] == texts
    assert found["recorded"] and "of sound" in found["figures"][-1]
    assert "cannot read the file as sound" in found["refused"]
    assert found["errors"] == [] and found["widths"] == {"desktop": 1200, "phone": 360}
    parts = ('heading "Transcribe"', 'combobox "Model"', 'button "Record"', "log")
    assert [part for part in parts if part not in found["tree"]] == [], found["tree"]
