"""Whisper's start tokens, samples and settings; `test_origins` has the outputs and exports."""

import numpy as np
import pytest
from helpers import origins as table
from helpers import published, whisper_folder
from helpers.origins import MAX_LENGTH, START

import keras_transformer as kt
from keras_transformer.export import export_saved_model
from keras_transformer.importers import whisper
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
    message = f"seconds must be at least 0.01 and at most {seconds}"
    for wrong in (0, seconds + 0.01):
        with pytest.raises(ValueError, match=message):
            whisper.load_model(origin.folder, seconds=wrong)


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
    files = {"generation_config.json": values}
    with pytest.raises(ValueError, match=message):
        whisper.read_settings(table.altered(origin.folder, tmp_path, files))


def test_start_tokens_need_an_encoder_of_the_caller():
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 11}
    with pytest.raises(ValueError, match="reads_start=True needs encoder="):
        kt.Transformer(23, **sizes, reads_start=True)


def test_start_tokens_must_be_padded_on_the_right(origin):
    rows = origin.prompts(2)
    rows["start_ids"][1] = [0, 2, 44, 47]
    with pytest.raises(ValueError, match="in start_ids must be padded on the right, but row 1"):
        kt.GreedySearch()(origin.ours, rows, MAX_LENGTH)
