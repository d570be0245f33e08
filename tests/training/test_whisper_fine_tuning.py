"""Fine-tuning Whisper with `fit`: batches of recordings, freezing, LoRA, and the export."""

import io

import keras
import numpy as np
import pytest
from helpers import tiers, whisper_folder
from helpers.checks import numpy64

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.export.runtime import Transcriber
from keras_transformer.importers import speech_search, whisper
from keras_transformer.sound.features import FeatureReader
from keras_transformer.sound.samples import read_blocks

pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")

EN, TRANSCRIBE, NO_TIMES, FIRST = 44, 47, 51, 52
TEXTS = ["one", "two", "three"]
SECONDS, MELS = 0.14, 5  # of the small model
OPTIONS = {"seconds": SECONDS, "mels": MELS, "batch_size": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    return whisper_folder.write(folder, whisper_folder.model())


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("sounds"), np.random.default_rng(0)
    paths = [folder / f"{text}.wav" for text in TEXTS]
    for path, seconds in zip(paths, (0.06, 0.1, 0.13), strict=True):
        soundfile.write(path, draw.normal(0, 0.1, int(8000 * seconds)), 8000)
    return paths


def batches(folder, sounds, **options):
    tokenizer = whisper.load(folder)[1]
    return kt.speech_batches(sounds, TEXTS, tokenizer, **{**OPTIONS, **options})


@pytest.mark.full
def test_batches_have_the_features_and_targets_of_whisper(folder, sounds):
    tokenizer = whisper.load(folder)[1]
    data = batches(folder, sounds, shuffle=False, batch_size=3)
    ((inputs, labels),) = data
    assert inputs["features"].shape == (3, 14, MELS)
    expected = FeatureReader(sounds[1], MELS).window(0, 14)
    np.testing.assert_array_equal(inputs["features"][1], expected)
    end = FIRST + 5  # 0.1 s
    text = [EN, TRANSCRIBE, FIRST, *tokenizer.encode(" two"), end]
    length = len(text) + 1
    assert inputs["target_ids"][1, :length].numpy().tolist() == [2, *text]
    assert labels[1, :length].numpy().tolist() == [0, 0, *text[2:], 3]
    assert not labels[1, length:].numpy().any()

    ((inputs, labels),) = batches(folder, sounds, times=False, language="de", batch_size=3)
    assert (inputs["target_ids"][:, :4].numpy() == [2, EN + 1, TRANSCRIBE, NO_TIMES]).all()
    assert (labels[:, :3].numpy() == 0).all() and (labels[:, 3].numpy() > 3).all()


@pytest.mark.full
def test_sounds_may_be_in_memory(folder, sounds):
    at_16k = [np.concatenate(list(read_blocks(path))) for path in sounds]
    ((expected, _),) = batches(folder, sounds, shuffle=False, batch_size=3)
    forms = [
        [path.read_bytes() for path in sounds],
        [io.BytesIO(path.read_bytes()) for path in sounds],
        at_16k,
        [(samples * 32768).astype("int16") for samples in at_16k],
        [sounds[0], at_16k[1], io.BytesIO(sounds[2].read_bytes())],
    ]
    for form in forms:
        ((inputs, _),) = batches(folder, form, shuffle=False, batch_size=3)
        np.testing.assert_array_equal(inputs["features"], expected["features"])
    for wrong, error in ((np.zeros((2, 99)), ValueError), (np.zeros(99, "int32"), TypeError)):
        with pytest.raises(error, match="Samples must"):
            batches(folder, [sounds[0], wrong, sounds[2]])


def test_batches_have_one_shape_and_long_recordings_are_left_out(folder, sounds):
    data = batches(folder, sounds)
    assert {inputs["features"].shape[:2] for inputs, _ in data} == {(2, 14)}
    assert sum(int((labels.numpy()[:, 2] > 0).sum()) for _, labels in data) == 3
    report = batches(folder, sounds, seconds=0.11).batches.report
    assert (report.kept, report.overlong) == (2, 1)
    data = batches(folder, sounds, batch_size=1, batch_multiple=2)
    assert {inputs["features"].shape[:2] for inputs, _ in data} == {(2, 14)}
    assert data.batches.report.kept == 3


def test_texts_longer_than_the_decoder_are_left_out(folder, sounds):
    tokenizer = whisper.load(folder)[1]
    texts = ["one", "two", "seven seven"]
    report = kt.speech_batches(sounds, texts, tokenizer, **OPTIONS, max_length=11).batches.report
    assert (report.kept, report.overlong) == (2, 1)
    assert "1 longer than 14 tokens or 11 of the target" in str(report)


def test_special_tokens_in_a_text_are_left_out(folder, sounds):
    tokenizer = whisper.load(folder)[1]
    (_, plain), (_, marked) = (
        next(iter(kt.speech_batches(sounds[:1], [text], tokenizer, **OPTIONS)))
        for text in ("ab", "a<|endoftext|>b<|0.02|>")
    )
    np.testing.assert_array_equal(plain, marked)


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (3, {"language": "fr"}, r"no token <\|fr\|>. Pass Whisper's"),
        (2, {}, "there are 2 sounds, 3 texts"),
        (3, {"batch_size": 0}, "batch_size must be an int of at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(folder, sounds, count, options, message):
    with pytest.raises(ValueError, match=message):
        batches(folder, sounds[:count], **options)


def test_another_tokenizer_is_refused(sounds):
    tokenizer = kt.Tokenizer.train(TEXTS, 300, hard_vocab_limit=False)
    with pytest.raises(ValueError, match="Pass Whisper's tokenizer"):
        kt.speech_batches(sounds, TEXTS, tokenizer, **OPTIONS)


def freeze(model):
    model.encoder.trainable = False


KINDS = {"all": lambda model: None, "frozen": freeze, "lora": lambda model: model.enable_lora(3)}


@pytest.mark.full
@pytest.mark.parametrize("kind", tiers.quick(KINDS, nightly=["all"]))
def test_fit_changes_trainable_weights_and_the_export_equals_keras(kind, folder, sounds, tmp_path):
    model, tokenizer = whisper.load(folder)
    KINDS[kind](model)
    before = {w.path: numpy64(w) for w in model.weights}
    model.compile(keras.optimizers.Adam(0.01), loss=kt.SequenceCrossentropy())
    losses = model.fit(batches(folder, sounds), epochs=15, verbose=0).history["loss"]
    assert losses[-1] < 0.9 * losses[0]
    changed = {w.path for w in model.weights if (numpy64(w) != before[w.path]).any()}
    assert changed == {w.path for w in model.trainable_weights}
    encoder = {w.path for w in model.encoder.weights}
    if kind != "lora":  # the table of sinusoids is never trained
        kept = encoder if kind == "frozen" else {"source_positions/embeddings"}
        assert encoder - changed == kept
        return
    names = {path.split("/")[-1] for path in changed & encoder}
    assert names == {"lora_kernel_a", "lora_kernel_b", "bias"}

    search = speech_search(whisper.read_settings(folder), tokenizer, beam_width=1)
    manifest = export_onnx(
        model, tmp_path / "out", tokenizer, search, max_source_length=13, verbose=False
    )
    assert manifest["limits"]["source_length"] == 13
    transcriber = Transcriber(tmp_path / "out", threads=1)
    source = {"features": whisper_folder.features(7, 13)}
    source["start_ids"] = np.repeat([[2, EN, TRANSCRIBE]], 7, axis=0).astype("int32")
    expected = search(model, source, 9)
    ids, scores = transcriber.session.run(
        ["token_ids", "scores"], {**source, "max_length": np.array([9], "int32")}
    )
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(scores, expected.scores, atol=1e-5)
    segments = transcriber.transcribe(sounds[2], language="en", temperatures=(0.0,))
    assert all(0 <= one.start <= one.end <= 0.26 for one in segments)
    assert segments.position == segments.duration == 0.13
