"""GPT-2 in ONNX Runtime, under rules and in training; `test_origins` has the outputs."""

import shutil

import keras
import numpy as np
import pytest
from helpers import exports, published
from helpers import origins as table
from helpers.origins import MAX_LENGTH
from helpers.published import torch

import keras_transformer as kt
from keras_transformer.export import export_onnx
from keras_transformer.importers import gpt2
from keras_transformer.padding import pad_rows


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    return table.made(tmp_path_factory)


def test_a_saved_model_is_loaded_and_trains(origins, tmp_path):
    origin = origins("gpt2")
    prompts = published.ids(len(origin.orders[0]), rows=7, end=False)
    origin.ours.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model(prompts), origin.ours(prompts))
    model.get_layer("token_embedding").trainable = False
    model.compile("sgd", loss=kt.SequenceCrossentropy(label_smoothing=0.1), run_eagerly=True)
    loss = model.fit(prompts, np.roll(prompts, -1, axis=1), verbose=0).history["loss"][0]
    assert loss < 100  # label smoothing over forbidden ids costs little


@pytest.mark.full
def test_onnx_runtime_equals_generate(origins, tmp_path):
    origin, options = origins("gpt2"), {"max_length": MAX_LENGTH, "verbose": False}
    export_onnx(origin.ours, tmp_path / "onnx", search=kt.GreedySearch(), **options)
    prompts = published.ids(len(origin.orders[0]), end=False)
    token_ids, _ = exports.session(tmp_path / "onnx").run(None, {"source_ids": prompts})
    assert published.found(token_ids) == origin.generate(prompts, 1)


@pytest.mark.full
def test_rules_equal_generate_in_keras_and_in_onnx_runtime(origins, tmp_path):
    """The penalty is greedy only: beams of `transformers` scale log-probabilities, not logits."""
    origin = origins("gpt2: other settings")
    random = np.random.default_rng(3)
    prompts = random.integers(4, len(origin.orders[0]), size=(97, 5)).astype("int32")
    prompts[:, 0] = 2  # the begin token
    free = origin.generate(prompts, 1)
    words = [free[0][:1], free[1][:2], free[2][1:4]]
    rules = [kt.NoRepeatNgrams(2), kt.ForbiddenWords(words[:1])]
    theirs = {"no_repeat_ngram_size": 2, "min_new_tokens": 4, "words": words}
    ours = {"forbidden_words": pad_rows(words[1:])[None], "min_length": np.array([5], "int32")}
    search = kt.BeamSearch(3, length_penalty=0.0, constraints=rules)
    found = published.found(search(origin.ours, prompts, MAX_LENGTH, **ours).ids)
    assert found == origin.generate(prompts, 3, **theirs) != origin.generate(prompts, 3)
    search = kt.GreedySearch(constraints=[kt.RepetitionPenalty(1.0), *rules])
    penalty = np.array(1.3, "float32")
    result = search(origin.ours, prompts, MAX_LENGTH, repetition_penalty=penalty, **ours)
    expected = origin.generate(prompts, 1, repetition_penalty=1.3, **theirs)
    assert published.found(result.ids) == expected != free
    options = {"max_length": MAX_LENGTH, "options": ["min_length"], "verbose": False}
    export_onnx(origin.ours, tmp_path / "onnx", search=search, **options)
    inputs = {"source_ids": prompts, "repetition_penalty": penalty, **ours}
    token_ids, _ = exports.session(tmp_path / "onnx").run(None, inputs)
    assert published.found(token_ids) == expected


def test_names_without_the_head_are_read(origins, tmp_path):
    """The model was saved without its head, with the masks of old files."""
    origin = origins("gpt2")
    shutil.copy(origin.folder / "config.json", tmp_path)
    state = {**origin.model.transformer.state_dict(), "h.1.attn.bias": torch.ones((1, 1, 29, 29))}
    torch.save(state, tmp_path / "pytorch_model.bin")
    ids = published.ids(len(origin.orders[0]), rows=3, end=False)
    np.testing.assert_array_equal(gpt2.load_model(tmp_path)(ids), origin.ours(ids))
