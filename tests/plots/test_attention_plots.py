"""Attention maps: they equal the weights of the forward pass, and figures show them."""

import numpy as np
import pytest
from helpers import encoders

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

import keras  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer import plots  # noqa: E402
from keras_transformer.layers import attention  # noqa: E402

SOURCE, TARGET = [5, 7, 11, 13, 3], [2, 17, 19]
SIZES = dict(vocab_size=23, num_layers=2, d_model=12, num_heads=3, d_ff=17)


def recorded(monkeypatch, model, inputs):
    """Returns the weights of every attention in the forward pass, in order."""
    weights = []
    original = attention.scaled_dot_product_attention

    def recording(*args, **kwargs):
        output, w = original(*args, **kwargs)
        weights.append(np.asarray(w))
        return output, w

    with monkeypatch.context() as patch:
        patch.setattr(attention, "scaled_dot_product_attention", recording)
        model(inputs)
    return weights


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_maps_are_the_weights_of_the_forward_pass(monkeypatch, norm_first, positions):
    model = kt.Transformer(**SIZES, norm_first=norm_first, positions=positions, dropout=0.5)
    source, target = np.array([[*SOURCE, 0, 0]]), np.array([TARGET])
    maps = plots.attention_maps(model, source[0], target[0])
    assert {name: w.shape for name, w in maps.items()} == {
        "encoder": (2, 3, 7, 7),
        "decoder": (2, 3, 3, 3),
        "cross": (2, 3, 3, 7),
    }
    inputs = {"source_ids": source, "target_ids": target}
    own = recorded(monkeypatch, model, inputs)
    expected = [*own[:2], own[2], own[4], own[3], own[5]]  # decoder blocks: self, cross
    found = [w[None] for name in ("encoder", "decoder", "cross") for w in maps[name]]
    for w, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(w, e, atol=1e-6)
    for w in maps.values():
        np.testing.assert_allclose(w.sum(-1), 1, atol=1e-6)
    assert not maps["encoder"][..., 5:].any() and not maps["cross"][..., 5:].any()  # padding
    assert not np.triu(maps["decoder"], 1).any()


def test_encoders_and_decoders_have_only_their_own_maps(monkeypatch):
    encoder = kt.TransformerEncoder(**SIZES)
    maps = plots.attention_maps(encoder, source_ids=SOURCE)
    assert list(maps) == ["encoder"]
    own = recorded(monkeypatch, encoder, np.array([SOURCE]))
    np.testing.assert_allclose(maps["encoder"], np.concatenate(own), atol=1e-6)

    decoder = kt.CausalTransformer(**SIZES)
    maps = plots.attention_maps(decoder, target_ids=TARGET)
    assert list(maps) == ["decoder"]
    own = recorded(monkeypatch, decoder, np.array([TARGET]))
    np.testing.assert_allclose(maps["decoder"], np.concatenate(own), atol=1e-6)


def test_an_end_token_that_the_encoder_ignores_gets_no_weight(monkeypatch):
    model = kt.Transformer(**SIZES, reads_end=False)
    maps = plots.attention_maps(model, SOURCE, TARGET)
    assert SOURCE[-1] == 3 and not maps["cross"][..., -1].any()
    inputs = {"source_ids": np.array([SOURCE]), "target_ids": np.array([TARGET])}
    own = recorded(monkeypatch, model, inputs)
    np.testing.assert_allclose(maps["encoder"], np.concatenate(own[:2]), atol=1e-6)
    np.testing.assert_allclose(maps["cross"], np.concatenate(own[3::2]), atol=1e-6)


def test_an_encoder_of_two_texts_takes_a_dict(monkeypatch):
    encoder = kt.TransformerEncoder(**SIZES, num_segments=2)
    inputs = {"source_ids": np.array(SOURCE), "segment_ids": np.array([1, 1, 2, 2, 2])}
    maps = plots.attention_maps(encoder, inputs)
    own = recorded(monkeypatch, encoder, {name: ids[None] for name, ids in inputs.items()})
    np.testing.assert_allclose(maps["encoder"], np.concatenate(own), atol=1e-6)


def test_a_custom_encoder_has_cross_attention_maps_only():
    model = encoders.writer(encoders.frames_encoder)
    frames = encoders.frames()
    maps = plots.attention_maps(model, frames[2], [2, 5, 7])
    assert sorted(maps) == ["cross", "decoder"] and maps["cross"].shape == (2, 2, 3, 7)
    assert not maps["cross"][..., 3:].any()  # padding frames
    np.testing.assert_allclose(maps["cross"].sum(axis=-1), 1.0, rtol=1e-5)
    named = plots.attention_maps(model, {"frames": frames[2]}, [2, 5, 7])
    np.testing.assert_array_equal(named["cross"], maps["cross"])


def test_low_precision_maps_are_float32():
    model = kt.Transformer(**SIZES, dtype="mixed_bfloat16")
    assert {w.dtype.name for w in plots.attention_maps(model, SOURCE, TARGET).values()} == {
        "float32"
    }


@pytest.mark.parametrize(
    "ids, problem",
    [({"target_ids": TARGET}, "source_ids"), ({"source_ids": SOURCE}, "target_ids")],
)
def test_missing_ids_are_named(ids, problem):
    with pytest.raises(ValueError, match=f"{problem} must be the ids of one sentence"):
        plots.attention_maps(kt.Transformer(**SIZES), **ids)


def test_a_batch_instead_of_a_sentence_is_an_error():
    with pytest.raises(ValueError, match=r"its shape is \(1, 5\)"):
        plots.attention_maps(kt.Transformer(**SIZES), [SOURCE], TARGET)


def test_labels_name_special_tokens_and_show_spaces():
    tokenizer = kt.Tokenizer.train(["a b a b"], vocab_size=270, hard_vocab_limit=False)
    ids = [2, *tokenizer.encode("a b"), 3, 0]
    labels = plots.token_labels(tokenizer, ids)
    assert len(labels) == len(ids)
    assert (labels[0], *labels[-2:]) == ("<s>", "</s>", "<pad>")
    assert {"a", "b"} <= set("".join(labels[1:-2])) and all(labels)


def test_grid_has_a_row_per_layer_and_a_column_per_head(tmp_path):
    weights = np.random.default_rng(3).random((2, 3, 5, 7))
    columns = list("abcde") + ["$x", "ü"]
    figure = plots.plot_attention(weights, list("vwxyz"), columns, title="cross")
    panels = figure.axes
    assert [panel.get_title() for panel in panels] == [
        f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3)
    ]
    for panel, w in zip(panels, weights.reshape(6, 5, 7), strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), w)
    figure.savefig(tmp_path / "attention.png")
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert figure.get_suptitle() == "cross"


def test_a_translation_is_drawn_with_its_own_tokens():
    tokenizer = kt.Tokenizer.train(["a b a b"], vocab_size=270, hard_vocab_limit=False)
    model = kt.Transformer(**SIZES | {"vocab_size": tokenizer.vocab_size})
    figure = plots.plot_translation(model, tokenizer, "a b", "b", title="a b -> b")
    source, target = [*tokenizer.encode("a b"), 3], [2, *tokenizer.encode("b")]
    weights = plots.attention_maps(model, source, target)["cross"]  # (2, 3, T, S)
    for panel, w in zip(figure.axes, weights.reshape(6, len(target), len(source)), strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), w)
    labelled = figure.axes[3]  # the left panel of the lower row
    assert labelled.get_yticklabels()[0].get_text() == "<s>"
    assert labelled.get_xticklabels()[-1].get_text() == "</s>"
    assert figure.get_suptitle() == "a b -> b"


@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 3, 7, 5)])
def test_shapes_of_weights_and_labels_must_match(shape):
    with pytest.raises(ValueError, match=r"must have shape \(layers, heads, 5, 7\)"):
        plots.plot_attention(np.zeros(shape), list("vwxyz"), list("abcdefg"))


@pytest.mark.parametrize("kinds", [[True], [False, True]])
def test_blocks_of_a_functional_model_show_their_weights(monkeypatch, kinds):
    frames = keras.Input((None, 12))
    x = keras.layers.Masking()(frames)
    for norm_first in kinds:
        x = kt.EncoderBlock(3, 17, dropout=0.5, norm_first=norm_first)(x)
    model = keras.Model(frames, keras.layers.Dense(2)(kt.SequencePooling()(x)))
    batch = np.random.default_rng(3).normal(size=(2, 5, 12)).astype("float32")
    batch[1, 3:] = 0
    found = plots.block_attention(model, batch)
    assert found.shape == (len(kinds), 2, 3, 5, 5) and not found[:, 1, :, :, 3:].any()
    np.testing.assert_allclose(found, recorded(monkeypatch, model, batch), atol=1e-6)


def test_calls_of_blocks_keep_their_arguments(monkeypatch):
    frames, seen = keras.Input((5, 12)), keras.Input((5,), dtype="bool")
    block, causal = kt.EncoderBlock(3, 17), kt.EncoderBlock(3, 17)
    x = block(keras.layers.Dense(12)(frames), attention_mask=seen)
    x, scores = causal(block(x), use_causal_mask=True, return_attention_scores=True)
    model = keras.Model([frames, seen], [x, scores["self"]])
    other = keras.Model(frames, block(frames))  # another model with the block
    random = np.random.default_rng(5)
    batch = [
        random.normal(size=(2, 5, 12)).astype("float32"),
        np.array([[1, 1, 0, 1, 1]] * 2, bool),
    ]
    found = plots.block_attention(model, batch)
    np.testing.assert_allclose(found, recorded(monkeypatch, model, batch), atol=1e-6)
    assert not found[0][..., 2].any() and found[1][..., 2].all()
    assert not np.triu(found[2], 1).any()
    assert plots.block_attention(other, batch[0]).shape == (1, 2, 3, 5, 5)
    assert "call" not in vars(block)


def test_blocks_with_different_numbers_of_heads_are_an_error():
    frames = keras.Input((5, 12))
    model = keras.Model(frames, kt.EncoderBlock(2, 17)(kt.EncoderBlock(3, 17)(frames)))
    with pytest.raises(ValueError, match=r"different shapes, \[\(1, 2, 5, 5\), \(1, 3, 5, 5\)\]"):
        plots.block_attention(model, np.zeros((1, 5, 12)))


def test_a_model_without_blocks_is_an_error():
    frames = keras.Input((5, 8))
    with pytest.raises(ValueError, match="calls no EncoderBlock"):
        plots.block_attention(keras.Model(frames, frames[:, 0]), np.zeros((1, 5, 8)))
