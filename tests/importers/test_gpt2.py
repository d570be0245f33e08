"""GPT-2 under rules, and other names of tensors; `test_origins` has the outputs."""

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
    state = {**origin.model.transformer.state_dict(), "h.1.attn.bias": torch.ones((1, 1, 29, 29))}
    table.altered(origin.folder, tmp_path, {"model.safetensors": None})
    torch.save(state, tmp_path / "pytorch_model.bin")
    ids = published.ids(len(origin.orders[0]), rows=3, end=False)
    np.testing.assert_array_equal(gpt2.load_model(tmp_path)(ids), origin.ours(ids))
