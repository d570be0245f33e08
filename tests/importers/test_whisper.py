"""Whisper folders: outputs and searches against `transformers`, in Keras and in ONNX Runtime.

Shapes: B batch, S frames, M mel bands, T target length, U Whisper's vocabulary, V ours.
"""

import json
import shutil

import keras
import numpy as np
import onnxruntime
import pytest
from helpers import exports, published, whisper_folder
from helpers.published import torch, transformers
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.export import export_onnx, export_saved_model
from keras_transformer.export.runtime import Transcriber
from keras_transformer.importers import whisper
from keras_transformer.importers.__main__ import main

MAX_LENGTH = 11
START = [2, 44, 47, 51]  # begin, <|en|>, <|transcribe|>, <|notimestamps|> in our numbering


class Origin:
    """A model of `transformers`, its folder, and the imported model and tokenizer."""

    def __init__(self, folder, **options):
        self.model = whisper_folder.model(**options)
        self.folder = whisper_folder.write(folder, self.model)
        self.ours, self.tokenizer = whisper.load(folder)
        (self.order,) = whisper.row_orders(folder)

    def logits(self, features, target):
        """Returns hidden states of the encoder and logits (B, T, U) for our ids."""
        with torch.no_grad():
            outputs = self.model(
                input_features=whisper_folder.channels_first(features),
                decoder_input_ids=published.theirs(self.order, target),
            )
        return outputs.encoder_last_hidden_state.numpy(), outputs.logits.numpy()

    def generate(self, features, start, beams):
        """Returns our ids that `transformers` writes, one list per recording.

        Whisper's `generate` adds rules, so this calls the `generate` below it.
        """
        start = np.repeat([start], len(features), axis=0)
        with torch.no_grad():
            generated = transformers.GenerationMixin.generate(
                self.model,
                inputs=whisper_folder.channels_first(features),
                decoder_input_ids=published.theirs(self.order, start),
                max_new_tokens=MAX_LENGTH,
                num_beams=beams,
                do_sample=False,
                bad_words_ids=[[whisper_folder.SIZES["decoder_start_token_id"]]],
                **({"length_penalty": 0.0, "early_stopping": True} if beams > 1 else {}),
            )
        return published.tokens(self.order, generated[:, start.shape[1] :], end=3)


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    return Origin(tmp_path_factory.mktemp("whisper"))


def source(rows=100, start=START):
    features = whisper_folder.features(rows)
    return {"features": features, "start_ids": np.repeat([start], rows, axis=0).astype("int32")}


SEARCHES = {1: kt.GreedySearch(), 5: kt.BeamSearch(5, length_penalty=0.0)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tie_word_embeddings": False, "activation_function": "gelu_new"},
    ],
    ids=["as published", "other settings"],
)
def test_encoder_output_and_logits_equal_transformers(options, tmp_path):
    origin = Origin(tmp_path, **options)
    features, target = whisper_folder.features(7), published.ids(63, rows=7, end=False)
    target = np.where(target == 0, 9, target)
    target[:, 0] = 2
    hidden, expected = origin.logits(features, target)
    assert published.relative(origin.ours.encoder(features), hidden) <= 1e-5
    logits = np.asarray(origin.ours({"features": features, "target_ids": target}))
    counted = [row for row in range(logits.shape[2]) if logits[0, 0, row] > whisper.NEVER / 2]
    assert sorted(origin.order[counted]) == list(range(expected.shape[2]))  # each token once
    assert published.relative(logits[..., counted], expected[..., origin.order[counted]]) <= 1e-5


@pytest.mark.parametrize("beams", SEARCHES)
def test_searches_equal_transformers(origin, beams):
    ours = published.found(SEARCHES[beams](origin.ours, source(), MAX_LENGTH).ids)
    assert ours == origin.generate(whisper_folder.features(), START, beams)
    assert len(set(map(tuple, ours))) > 5 and len(set(map(len, ours))) > 1


def test_rows_start_with_their_own_tokens(origin):
    """Rows with and without previous text give the same as each row alone."""
    rows = source(3)
    previous = [49, 9, 4, 13, *START]  # <|startofprev|>, text with "!", then the usual start
    rows["start_ids"] = np.zeros((3, len(previous)), "int32")
    for row, start in enumerate((START, previous, [2])):
        rows["start_ids"][row, : len(start)] = start
    found = published.found(SEARCHES[5](origin.ours, rows, MAX_LENGTH).ids)
    for row, start in enumerate((START, previous, [2])):
        expected = origin.generate(rows["features"][row : row + 1], start, 5)
        assert found[row : row + 1] == expected


@pytest.mark.full
@pytest.mark.parametrize("layout", quick(["loop", "steps"], "loop"))
def test_onnx_runtime_equals_transformers(origin, layout, tmp_path):
    export_onnx(
        origin.ours,
        tmp_path / "onnx",
        origin.tokenizer,
        SEARCHES[5],
        max_length=MAX_LENGTH,
        max_source_length=whisper_folder.FRAMES,
        layout=layout,
        verbose=False,
    )
    rows = source()
    transcriber = Transcriber(tmp_path / "onnx", threads=1)
    assert transcriber.manifest["limits"]["source_length"] == whisper_folder.FRAMES
    token_ids, _ = transcriber.session.run(None, rows)
    expected = origin.generate(rows["features"], START, 5)
    assert published.found(token_ids) == expected
    items = [{name: array[row] for name, array in rows.items()} for row in range(3)]
    assert transcriber.transcribe(items) == origin.tokenizer.decode(expected[:3])


@pytest.mark.full
def test_a_saved_model_equals_keras(origin, tmp_path):
    import tensorflow as tf

    path = tmp_path / "saved"
    export_saved_model(origin.ours, path, None, search=SEARCHES[5], max_length=7, verbose=False)
    found = tf.saved_model.load(path).signatures["search"](**source(5))["token_ids"]
    assert published.found(found) == published.found(SEARCHES[5](origin.ours, source(5), 7).ids)


def test_the_tokenizer_has_our_ids_and_all_times(origin):
    added = origin.tokenizer.added_ids
    assert [added[f"<|{name}|>"] for name in ("startoftranscript", "endoftext")] == [2, 3]
    assert [added[f"<|{name}|>"] for name in ("en", "transcribe", "notimestamps")] == START[1:]
    times = [added[f"<|{0.02 * i:.2f}|>"] for i in range(11)]
    assert times == list(range(52, 63)) and origin.tokenizer.vocab_size == 63
    ids = origin.tokenizer.encode("!ab")
    assert ids == [4, 5, 6]  # "!" is no padding
    assert origin.tokenizer.decode([times[1], *ids, times[5], 3, 7]) == "!ab"


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


@pytest.mark.full
def test_one_command_writes_the_export(origin, tmp_path):
    out = tmp_path / "out"
    command = ["whisper", str(origin.folder), str(out), "--export", "onnx", "--quiet"]
    assert main([*command, "--max-length", "7"]) == 0
    session = exports.session(out)
    assert isinstance(session, onnxruntime.InferenceSession)
    inputs = {value.name: value.shape[1:] for value in session.get_inputs()}
    assert inputs == {"features": ["features_length", 5], "start_ids": ["start_ids_length"]}
    manifest = json.loads((out / "artefact.json").read_text("utf-8"))
    assert manifest["limits"]["source_length"] == whisper_folder.FRAMES


# Bad input


@pytest.fixture
def copy(origin, tmp_path):
    return shutil.copytree(origin.folder, tmp_path / "copy")


def changed(folder, file="config.json", **values):
    read = json.loads((folder / file).read_text("utf-8"))
    (folder / file).write_text(json.dumps({**read, **values}), "utf-8")


@pytest.mark.parametrize(
    "values, message",
    [
        ({"model_type": "t5"}, "architecture 't5', but this importer reads 'whisper'"),
        ({"decoder_ffn_dim": 48}, "encoder_ffn_dim and decoder_ffn_dim are 24 and 48"),
        ({"vocab_size": 10**12}, "vocab_size=1000000000000"),
        ({"max_source_positions": 10**12}, "max_source_positions=1000000000000, but"),
        ({"encoder_layers": 3}, "encoder.layers.2.fc1.weight is missing"),
        ({"num_mel_bins": 7}, r"conv1.weight has shape \(16, 5, 3\), not \(16, 7, 3\)"),
        ({"eos_token_id": 99}, r"\[99\] are not among the 61 ids"),
        ({"activation_function": "quick"}, "activation_function is 'quick'"),
    ],
)
def test_configurations_of_another_model_are_refused(copy, values, message):
    changed(copy, **values)
    with pytest.raises(ValueError, match=message):
        whisper.load_model(copy)


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
def test_settings_of_a_wrong_type_are_refused(copy, values, message):
    changed(copy, "generation_config.json", **values)
    with pytest.raises(ValueError, match=message):
        whisper.read_settings(copy)


def test_start_tokens_need_an_encoder_of_the_caller():
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 11}
    with pytest.raises(ValueError, match="reads_start=True needs encoder="):
        kt.Transformer(23, **sizes, reads_start=True)


def test_start_tokens_must_be_padded_on_the_right(origin):
    rows = source(2)
    rows["start_ids"][1] = [0, 2, 44, 47]
    with pytest.raises(ValueError, match="in start_ids must be padded on the right, but row 1"):
        kt.GreedySearch()(origin.ours, rows, MAX_LENGTH)
