"""`export_attention`: ONNX Runtime computes the attention weights that the plots draw."""

import numpy as np
import pytest
from helpers import exports, node

from keras_transformer import export
from keras_transformer.export.runtime import Predictor
from keras_transformer.plots import attention_maps


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("attention") / "made"
    export.export_attention(exports.shared_model(), path, verbose=False)
    return path


@pytest.mark.full
def test_attention_equals_the_plotted_weights_with_padding_too(folder):
    source, target = [[7, 9, 11, 3], [23, 3]], [[2, 13], [2, 17, 19]]
    inputs = [
        {"source_ids": one, "target_ids": other} for one, other in zip(source, target, strict=True)
    ]
    results = Predictor(folder).predict(inputs)
    for one, other, result in zip(source, target, results, strict=True):
        (weights,) = result.arrays.values()
        cross = attention_maps(exports.shared_model(), one, other)["cross"]
        np.testing.assert_allclose(weights, cross[-1].mean(0), atol=1e-5)


@pytest.mark.full
def test_the_browser_package_computes_the_same_attention(folder, node_folder):
    request = {"translator": str(exports.artefact()), "attention": str(folder)}
    found = node.run(node_folder, "attention.js", {**request, "line": exports.LINES[0]})
    ids = [2, *found["ids"][:-1]]
    cross = attention_maps(exports.shared_model(), found["sourceIds"], ids)["cross"]
    np.testing.assert_allclose(found["weights"], cross[-1].mean(0), atol=1e-5)
    assert "No attention is loaded" in found["before"]
    assert "Write it with export_attention" in found["other"]


@pytest.mark.parametrize(
    "model, block, error, told",
    [
        ("generate", -1, TypeError, "got a CausalTransformer"),
        ("translate", "last", TypeError, "must be an integer"),
        ("translate", 2, ValueError, "is 2, but the decoder has 2 blocks"),
    ],
)
def test_wrong_models_and_blocks_are_refused(model, block, error, told, tmp_path):
    with pytest.raises(error, match=told):
        export.export_attention(exports.shared_model(model), tmp_path / "a", block=block)
