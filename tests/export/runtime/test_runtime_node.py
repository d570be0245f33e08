"""An artefact outside Python: Node.js with ONNX Runtime's WebAssembly build."""

import numpy as np
import pytest
from support import artefacts, node

from keras_transformer.export.runtime import Translator

pytestmark = pytest.mark.full


def test_node_gives_the_same_tokens_as_python(node_folder, tmp_path):
    folder = artefacts.write(tmp_path, artefacts.tokenizer())
    translator = Translator(folder, threads=1)
    batches = [node.padded(translator, artefacts.LINES[:n]) for n in (1, 2, 5)]
    results = node.run_in_node(node_folder, folder / "model.onnx", batches)
    assert len(results) == len(batches)
    for batch, result in zip(batches, results, strict=True):
        tokens, scores = translator.session.run(["token_ids", "scores"], {"source_ids": batch})
        np.testing.assert_array_equal(result["token_ids"], tokens)
        np.testing.assert_allclose(result["scores"], scores, atol=1e-4)
