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


def transformer(**options):
    return kt.Transformer(**SIZES, **{"dropout": 0.5, **options})


BOTH = {"source_ids": np.array([*SOURCE, 0, 0]), "target_ids": np.array(TARGET)}
TWO_TEXTS = {"source_ids": np.array(SOURCE), "segment_ids": np.array([1, 1, 2, 2, 2])}
# Places in the forward pass: blocks of the encoder, then self and cross of each decoder block.
ALL = {"encoder": [0, 1], "decoder": [2, 4], "cross": [3, 5]}
MAPS = {
    "post-norm": (transformer, BOTH, ALL),
    "pre-norm": (lambda: transformer(norm_first=True, positions="learned"), BOTH, ALL),
    "rotary": (lambda: transformer(positions="rotary"), BOTH, ALL),
    "ignored end": (lambda: transformer(reads_end=False), {**BOTH, "source_ids": SOURCE}, ALL),
    "recurrent": (
        lambda: transformer(recurrent_decoder=True),
        BOTH,
        {"encoder": [0, 1], "cross": [2, 3]},
    ),
    "encoder": (
        lambda: kt.TransformerEncoder(**SIZES),
        {"source_ids": SOURCE},
        {"encoder": [0, 1]},
    ),
    "two texts": (
        lambda: kt.TransformerEncoder(**SIZES, num_segments=2),
        {"source_ids": TWO_TEXTS},
        {"encoder": [0, 1]},
    ),
    "language model": (
        lambda: kt.CausalTransformer(**SIZES),
        {"target_ids": TARGET},
        {"decoder": [0, 1]},
    ),
    "low precision": (lambda: transformer(dtype="mixed_bfloat16"), BOTH, ALL),
}


@pytest.mark.quick("two texts", "encoder", "language model")
@pytest.mark.parametrize("name", MAPS)
def test_maps_are_the_weights_of_the_forward_pass(monkeypatch, name):
    make, given, places = MAPS[name]
    model, texts = make(), given.get("source_ids")
    maps = plots.attention_maps(model, **given)
    given = {**given, **texts} if isinstance(texts, dict) else given
    batch = {key: np.array(ids)[None] for key, ids in given.items()}
    own = recorded(monkeypatch, model, batch if len(batch) > 1 else [*batch.values()][0])
    expected = {use: np.concatenate([own[place] for place in places[use]]) for use in places}
    assert maps.keys() == expected.keys()
    for use, weights in maps.items():
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights, expected[use].astype("float32"), atol=1e-6)
    # the row of padding or of an ignored end
    assert "cross" not in maps or not maps["cross"][..., 4 if name == "ignored end" else 5 :].any()


def test_a_custom_encoder_has_cross_attention_maps_only():
    model = encoders.writer(encoders.frames_encoder)
    frames = encoders.frames()
    maps = plots.attention_maps(model, frames[2], [2, 5, 7])
    assert sorted(maps) == ["cross", "decoder"] and maps["cross"].shape == (2, 2, 3, 7)
    assert not maps["cross"][..., 3:].any()  # padding frames
    np.testing.assert_allclose(maps["cross"].sum(axis=-1), 1.0, rtol=1e-5)
    named = plots.attention_maps(model, {"frames": frames[2]}, [2, 5, 7])
    np.testing.assert_array_equal(named["cross"], maps["cross"])


@pytest.mark.parametrize(
    "ids, problem",
    [
        ({"target_ids": TARGET}, "source_ids must be the ids of one sentence"),
        ({"source_ids": SOURCE}, "target_ids must be the ids of one sentence"),
        ({"source_ids": [SOURCE], "target_ids": TARGET}, r"its shape is \(1, 5\)"),
    ],
)
def test_ids_that_are_not_one_sentence_are_refused(ids, problem):
    with pytest.raises(ValueError, match=problem):
        plots.attention_maps(kt.Transformer(**SIZES), **ids)


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
    ticks = figure.axes[3].get_yticklabels(), figure.axes[3].get_xticklabels()  # lower left
    shown = [[tick.get_text() for tick in each] for each in ticks]
    labels = [plots.token_labels(tokenizer, ids) for ids in (target, source)]
    assert shown == labels and (labels[0][0], labels[1][-1]) == ("<s>", "</s>")
    assert {"a", "b"} <= set("".join(labels[1])) and all(labels[1])
    assert plots.token_labels(tokenizer, [0]) == ["<pad>"]
    assert figure.get_suptitle() == "a b -> b"


@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 3, 7, 5)])
def test_shapes_of_weights_and_labels_must_match(shape):
    with pytest.raises(ValueError, match=r"must have shape \(layers, heads, 5, 7\)"):
        plots.plot_attention(np.zeros(shape), list("vwxyz"), list("abcdefg"))


def test_calls_of_blocks_keep_their_arguments(monkeypatch):
    frames, seen = keras.Input((5, 12)), keras.Input((5,), dtype="bool")
    block, causal = kt.EncoderBlock(3, 17, dropout=0.5), kt.EncoderBlock(3, 17, norm_first=True)
    x = block(keras.layers.Masking()(frames), attention_mask=seen)
    x, scores = causal(block(x), use_causal_mask=True, return_attention_scores=True)
    model = keras.Model([frames, seen], [x, scores["self"]])
    other = keras.Model(frames, block(frames))  # another model with the block
    random = np.random.default_rng(5)
    batch = [random.normal(size=(2, 5, 12)), np.array([[1, 1, 0, 1, 1]] * 2, bool)]
    batch[0][1, 3:] = 0.0  # padding
    found = plots.block_attention(model, batch)
    np.testing.assert_allclose(found, recorded(monkeypatch, model, batch), atol=1e-6)
    assert not found[0][..., 2].any() and found[1][..., 2].all()
    assert not found[:2, 1, :, :, 3:].any() and not np.triu(found[2], 1).any()
    assert plots.block_attention(other, batch[0]).shape == (1, 2, 3, 5, 5)
    assert "call" not in vars(block)


@pytest.mark.parametrize(
    "layers, message",
    [
        (
            lambda x: kt.EncoderBlock(2, 17)(kt.EncoderBlock(3, 17)(x)),
            r"different shapes, \[\(1, 2, 5, 5\), \(1, 3, 5, 5\)\]",
        ),
        (lambda x: x[:, 0], "calls no EncoderBlock"),
    ],
    ids=["different numbers of heads", "no block"],
)
def test_models_without_blocks_of_one_shape_are_refused(layers, message):
    frames = keras.Input((5, 12))
    with pytest.raises(ValueError, match=message):
        plots.block_attention(keras.Model(frames, layers(frames)), np.zeros((1, 5, 12)))
