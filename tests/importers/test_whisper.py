"""Whisper in ONNX Runtime and in training, and its tokens; `test_origins` has the outputs."""

import json

import keras
import numpy as np
import pytest
from helpers import origins as table
from helpers import published, whisper_folder
from helpers.origins import MAX_LENGTH, START
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.export import export_onnx, export_saved_model
from keras_transformer.export.runtime import Transcriber
from keras_transformer.importers import whisper
from keras_transformer.importers.__main__ import main
from keras_transformer.sound.features import FeatureReader

SEARCH = kt.BeamSearch(5, length_penalty=0.0)


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    return table.made(tmp_path_factory)("whisper")


@pytest.fixture(scope="module")
def tokenizer(origin):
    return whisper.load(origin.folder)[1]


def test_rows_start_with_their_own_tokens(origin):
    """Rows with and without previous text give the same as each row alone."""
    rows = origin.prompts(3)
    previous = [49, 9, 4, 13, *START]  # <|startofprev|>, text with "!", then the usual start
    rows["start_ids"] = np.zeros((3, len(previous)), "int32")
    for row, start in enumerate((START, previous, [2])):
        rows["start_ids"][row, : len(start)] = start
    found = published.found(SEARCH(origin.ours, rows, MAX_LENGTH).ids)
    for row, start in enumerate((START, previous, [2])):
        one = {"features": rows["features"][row : row + 1], "start_ids": np.array([start])}
        expected = origin.generate(one, 5)
        assert found[row : row + 1] == expected


@pytest.mark.full
@pytest.mark.parametrize("layout", quick(["loop", "steps"], nightly=["steps"]))
def test_onnx_runtime_equals_transformers(origin, tokenizer, layout, tmp_path):
    export_onnx(
        origin.ours,
        tmp_path / "onnx",
        tokenizer,
        SEARCH,
        max_length=MAX_LENGTH,
        max_source_length=whisper_folder.FRAMES,
        layout=layout,
        verbose=False,
    )
    rows = origin.prompts(100)
    transcriber = Transcriber(tmp_path / "onnx", threads=1)
    assert transcriber.manifest["limits"]["source_length"] == whisper_folder.FRAMES
    token_ids, _ = transcriber.session.run(None, rows)
    expected = origin.generate(rows, 5)
    assert published.found(token_ids) == expected
    items = [{name: array[row] for name, array in rows.items()} for row in range(3)]
    assert transcriber.transcribe(items) == tokenizer.decode(expected[:3])


@pytest.mark.nightly
def test_a_saved_model_equals_keras(origin, tmp_path):
    import tensorflow as tf

    path = tmp_path / "saved"
    export_saved_model(origin.ours, path, None, search=SEARCH, max_length=7, verbose=False)
    found = tf.saved_model.load(path).signatures["search"](**origin.prompts(5))["token_ids"]
    assert published.found(found) == published.found(SEARCH(origin.ours, origin.prompts(5), 7).ids)


def test_the_tokenizer_has_our_ids_and_all_times(tokenizer):
    added = tokenizer.added_ids
    assert [added[f"<|{name}|>"] for name in ("startoftranscript", "endoftext")] == [2, 3]
    assert [added[f"<|{name}|>"] for name in ("en", "transcribe", "notimestamps")] == START[1:]
    times = [added[f"<|{0.02 * i:.2f}|>"] for i in range(11)]
    assert times == list(range(52, 63)) and tokenizer.vocab_size == 63
    ids = tokenizer.encode("!ab")
    assert ids == [4, 5, 6]  # "!" is no padding
    assert tokenizer.decode([times[1], *ids, times[5], 3, 7]) == "!ab"


def test_settings_have_our_ids(origin):
    assert whisper.read_settings(origin.folder) == kt.importers.SpeechSettings(
        languages={"en": 44, "de": 45},
        suppressed=(5, 9),
        suppressed_first=(4, 3),
        alignment_heads=((0, 3),),
    )


@pytest.mark.full
def test_an_imported_model_trains_saves_and_loads(origin, tmp_path):
    model = whisper.load_model(origin.folder, dropout=0.1, dtype="mixed_bfloat16")
    features = whisper_folder.features(8, frames=10)  # shorter recordings than Whisper's
    target = published.ids(63, rows=8, end=False)
    target[:, 0] = 2
    model.compile("adam", kt.SequenceCrossentropy(), run_eagerly=True)
    inputs = {"features": features, "target_ids": target}
    before = np.array(model.encoder.get_layer("convolution_1").kernel)
    loss = model.fit(inputs, np.roll(target, -1, axis=1), verbose=0).history["loss"]
    assert np.isfinite(loss).all()
    assert np.abs(model.encoder.get_layer("convolution_1").kernel - before).max() > 0
    assert not model.encoder.get_layer("source_positions").trainable
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.reads_start
    np.testing.assert_array_equal(again(inputs), model(inputs))


def test_a_model_that_reads_samples_hears_the_same(origin, tmp_path):
    ours, seconds = origin.ours, whisper_folder.FRAMES / 100
    ours.save_weights(tmp_path / "a.weights.h5")
    hearing = whisper.load_model(origin.folder, seconds=seconds)
    hearing.set_weights([np.zeros_like(weight) for weight in hearing.get_weights()])
    hearing.load_weights(tmp_path / "a.weights.h5")
    assert hearing.source_inputs.keys() == {"samples", "start_ids"}
    samples = np.random.default_rng(3).normal(0, 0.1, (2, 1700)).astype("float32")
    features = [FeatureReader(row, 5).window(0, whisper_folder.FRAMES) for row in samples]
    start = np.zeros((2, len(START)), "int32")
    start[0], start[1, 0] = START, 2
    found = SEARCH(hearing, {"samples": samples, "start_ids": start}, MAX_LENGTH)
    expected = SEARCH(ours, {"features": np.stack(features), "start_ids": start}, MAX_LENGTH)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
    for wrong in (0, seconds + 0.01):
        with pytest.raises(
            ValueError, match=f"seconds must be at least 0.01 and at most {seconds}"
        ):
            whisper.load_model(origin.folder, seconds=wrong)
    with pytest.raises(SystemExit):
        main(["marian", str(origin.folder), str(tmp_path / "out"), "--seconds", "30"])


# Bad input


@pytest.mark.parametrize(
    "values, message",
    [
        ({"lang_to_id": {"<|en|>": "42"}}, "must hold a vocabulary"),
        ({"lang_to_id": {"<|en|>": 61}}, "languages in .* must be a list of ids of the 61"),
        ({"suppress_tokens": 5}, "suppressed tokens in .* must be a list"),
        ({"begin_suppress_tokens": [-1]}, "tokens suppressed at the start in"),
        ({"alignment_heads": [[1, "2"]]}, "alignment_heads in .* must be a list of pairs"),
    ],
)
def test_settings_of_a_wrong_type_are_refused(origin, values, message, tmp_path):
    table.changed(origin, tmp_path)
    settings = {**whisper_folder.GENERATION, **values}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings), "utf-8")
    with pytest.raises(ValueError, match=message):
        whisper.read_settings(tmp_path)


def test_start_tokens_need_an_encoder_of_the_caller():
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 11}
    with pytest.raises(ValueError, match="reads_start=True needs encoder="):
        kt.Transformer(23, **sizes, reads_start=True)


def test_start_tokens_must_be_padded_on_the_right(origin):
    rows = origin.prompts(2)
    rows["start_ids"][1] = [0, 2, 44, 47]
    with pytest.raises(ValueError, match="in start_ids must be padded on the right, but row 1"):
        kt.GreedySearch()(origin.ours, rows, MAX_LENGTH)
