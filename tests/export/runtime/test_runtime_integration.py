"""An exported model: Keras and the runtime return the same texts."""

import keras
import numpy as np
import pytest
from helpers import artefacts, node

import keras_transformer
from keras_transformer import export
from keras_transformer.export.runtime import Translator

LINES = [" ".join(line.split()[:words]) for line in artefacts.LINES for words in (1, 3, 5)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Returns model, search and folder. Weights are doubled: else all sentences end alike."""
    keras.utils.set_random_seed(20170612)
    tokenizer = artefacts.tokenizer()
    model = keras_transformer.Transformer(
        tokenizer.vocab_size, num_layers=1, d_model=14, num_heads=2, d_ff=23
    )
    model.set_weights([2 * weight for weight in model.get_weights()])
    search = keras_transformer.BeamSearch(3, length_penalty=0.6)
    folder = tmp_path_factory.mktemp("export") / "onnx"
    export.export_onnx(model, folder, tokenizer, search, max_length=11, verbose=False)
    return model, search, folder


@pytest.mark.full
def test_the_runtime_returns_the_hypotheses_of_keras(exported):
    model, search, folder = exported
    translator = Translator(folder, threads=1)
    ids = node.padded(translator, LINES)
    found = search(model, ids, 11)
    results = translator.n_best(LINES, tokens_per_batch=31)
    texts = [translator.tokenizer.decode(rows) for rows in found.ids.numpy()]
    for result, all_texts, scores in zip(results, texts, found.scores.numpy(), strict=True):
        kept = [all_texts.index(text) for text in dict.fromkeys(all_texts)]  # a text once
        assert list(result.texts) == [all_texts[i] for i in kept]
        np.testing.assert_allclose(result.scores, scores[kept], atol=1e-4)
    assert len({result.text for result in results}) > len(LINES) // 2
