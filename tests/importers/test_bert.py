"""BERT folders: hidden states against `transformers`, in Keras and in ONNX Runtime.

Shapes: B batch, S length, D d_model, U their vocabulary, V ours.
"""

import json

import numpy as np
import pytest
from helpers import exports, published
from helpers.origins import bert_model
from helpers.published import torch

from keras_transformer import pair_batches
from keras_transformer.export import export_onnx
from keras_transformer.export.runtime import Predictor
from keras_transformer.importers import bert


def write(folder, special=(0, 5, 6, 7), **options):
    """Saves a random model of `transformers` and a vocabulary with the given special ids."""
    model = bert_model(**options)
    model.save_pretrained(folder)
    pieces = [f"piece{id}" for id in range(37)]
    for piece, id in zip(bert.SPECIAL, special, strict=True):
        pieces[id] = piece
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    return model


def hidden_states(model, folder, ids, segment_ids=None):
    (order,) = bert.row_orders(folder)
    types = None if segment_ids is None else torch.from_numpy(np.maximum(segment_ids - 1, 0))
    with torch.no_grad():
        return model(
            input_ids=published.theirs(order, ids),
            attention_mask=published.mask(ids),
            token_type_ids=types,
        ).last_hidden_state.numpy()


def texts(**options):
    ids = published.ids(37, rows=7, **options)
    ids[np.arange(7), (ids > 0).argmax(axis=1)] = 2  # [CLS]
    return ids


@pytest.mark.parametrize(
    "special, activation",
    [((0, 5, 6, 7), "gelu"), ((9, 0, 3, 1), "relu"), ((3, 2, 1, 0), "gelu_new")],
)
def test_hidden_states_equal_transformers(special, activation, tmp_path):
    model = write(tmp_path, special, hidden_act=activation)
    ours = bert.load_model(tmp_path)
    for ids in (texts(side="left"), texts(side="right")):
        expected = hidden_states(model, tmp_path, ids)
        assert published.relative(np.asarray(ours(ids))[ids > 0], expected[ids > 0]) <= 1e-5


def test_two_texts_in_a_row_have_segments(tmp_path):
    model, ids = write(tmp_path), texts()
    segment_ids = np.where(ids > 0, 1 + (np.arange(10) > 3), 0).astype("int32")
    encoder = bert.load_model(tmp_path, segments=True, dropout=0.0)
    found = np.asarray(encoder({"source_ids": ids, "segment_ids": segment_ids}))
    expected = hidden_states(model, tmp_path, ids, segment_ids)
    assert published.relative(found[ids > 0], expected[ids > 0]) <= 1e-5
    first = np.asarray(encoder({"source_ids": ids, "segment_ids": (ids > 0).astype("int32")}))
    alone = np.asarray(bert.load_model(tmp_path)(ids))
    np.testing.assert_allclose(first[ids > 0], alone[ids > 0], atol=1e-5)


@pytest.mark.full
def test_two_texts_in_a_row_have_one_begin_token_also_in_the_runtime(tmp_path):
    write(tmp_path)
    encoder, tokenizer = bert.load(tmp_path, segments=True)
    texts = ("piece8", "piece9 piece10")
    ((inputs, _),) = pair_batches(*([text] for text in texts), tokenizer, labels=[0], one_row=True)
    first, second = tokenizer.encode(texts)
    assert first[0] == second[0] == 2
    assert inputs["source_ids"].numpy().tolist() == [[*first, 3, *second[1:], 3]]
    export_onnx(encoder, tmp_path / "onnx", tokenizer, verbose=False)
    (found,) = Predictor(tmp_path / "onnx").predict([texts])
    np.testing.assert_allclose(found.arrays["encoder_norm"], encoder(inputs)[0], atol=1e-5)


@pytest.mark.full
def test_sentence_vectors_are_normalized_means_also_in_onnx_runtime(tmp_path):
    model, ids = write(tmp_path), texts()
    hidden, counted = hidden_states(model, tmp_path, ids), (ids > 0)[..., None]
    expected = (hidden * counted).sum(axis=1) / counted.sum(axis=1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    encoder = bert.load_sentence_encoder(tmp_path)
    assert published.relative(encoder(ids), expected) <= 1e-5
    export_onnx(encoder, tmp_path / "onnx", verbose=False)
    (found,) = exports.session(tmp_path / "onnx").run(None, {"source_ids": ids})
    assert published.relative(found, expected) <= 1e-5


def test_heads_and_earlier_names_are_read(tmp_path):
    """Early BERT files have other names of norms, and heads of the pretraining."""
    model, ids = write(tmp_path), texts()
    expected = bert.load_model(tmp_path)(ids)
    earlier = {"cls.predictions.bias": torch.zeros(37)}
    for name, tensor in model.state_dict().items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        earlier["bert." + name.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    (tmp_path / "model.safetensors").unlink()
    torch.save(earlier, tmp_path / "pytorch_model.bin")
    with pytest.warns(UserWarning, match="cls.predictions.bias, which this model leaves out"):
        np.testing.assert_array_equal(bert.load_model(tmp_path)(ids), expected)


def test_a_vocabulary_without_a_special_token_is_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n", "utf-8")
    with pytest.raises(ValueError, match=r"lacks \['\[SEP\]'\]"):
        bert.load_model(tmp_path)


def test_the_vocabulary_may_be_in_tokenizer_json(tmp_path):
    write(tmp_path)
    expected = bert.read_vocabulary(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": expected}}), "utf-8")
    assert bert.read_vocabulary(tmp_path) == expected


def test_a_vocabulary_that_is_no_text_is_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="vocab.txt is no UTF-8 text"):
        bert.load_model(tmp_path)
