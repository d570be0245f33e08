"""Frozen, quantized and low-rank layers: in training, in saved files, and inside other models."""

import keras
import numpy as np
import pytest
from helpers.checks import numpy64
from helpers.tiers import quick

import keras_transformer as kt

V, SIZES = 23, dict(num_layers=2, d_model=12, num_heads=2, d_ff=17, dropout=0.0)
IDS = np.array([[2, 5, 7, 11, 3], [2, 13, 3, 0, 0]], "int32")
KINDS = [kt.Transformer, kt.TransformerEncoder, kt.CausalTransformer]
kinds = pytest.mark.parametrize("kind", KINDS)
# Keras 3.15 warns of each layer, Keras 3.16 of all of them at once.
UNQUANTIZED = "does not have a `quantize` method|do not support quantization"
costly_kinds = pytest.mark.parametrize("kind", quick(KINDS, kt.Transformer))


def inputs(model):
    ids = {"source_ids": IDS, "target_ids": IDS}
    return ids if isinstance(model, kt.Transformer) else IDS


def trained(model, eager=True):
    """Returns paths of weights that two updates change. A graph takes four times as long."""
    before = {w.path: numpy64(w) for w in model.weights}
    loss = "mse" if isinstance(model, kt.TransformerEncoder) else kt.SequenceCrossentropy()
    model.compile(keras.optimizers.Adam(0.1), loss=loss, run_eagerly=eager)
    labels = np.zeros((*IDS.shape, SIZES["d_model"])) if loss == "mse" else IDS
    model.fit(inputs(model), labels, epochs=2, verbose=0)
    return {w.path for w in model.weights if (numpy64(w) != before[w.path]).any()}


def loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


def flags(model):
    return {w.path: w.trainable for w in model.weights}


def test_a_frozen_encoder_does_not_change_in_training_and_after_loading(tmp_path):
    model = kt.Transformer(V, **SIZES)
    model.encoder.trainable = False
    encoder = {w.path for w in model.encoder.weights}
    assert "token_embedding/embeddings" in encoder and len(encoder) == 25
    changed = trained(model, eager=False)
    assert changed and not changed & encoder
    again = loaded(model, tmp_path)  # with the optimizer's state: filterwarnings is "error"
    assert flags(again) == flags(model) and not again.encoder.trainable and again.decoder.trainable
    assert not trained(again) & encoder


def test_a_model_made_frozen_stays_frozen_inside_another(tmp_path):
    encoder = kt.TransformerEncoder(V, **SIZES, trainable=False)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(2)(kt.SequencePooling()(encoder(ids))))
    assert not encoder.trainable_weights and len(model.trainable_weights) == 2
    assert flags(loaded(model, tmp_path)) == flags(model)


@pytest.mark.parametrize("late", [False, True])
def test_a_block_frozen_before_it_is_built_stays_frozen(late, tmp_path):
    block = kt.EncoderBlock(2, 17, trainable=late)
    block.trainable = False
    frames = keras.Input((None, 12))
    model = keras.Model(frames, keras.layers.Dense(2)(block(frames)))
    assert block.weights and not any(weight.trainable for weight in block.weights)
    assert flags(loaded(model, tmp_path)) == flags(model)


def test_a_frozen_decoder_leaves_the_encoder_trainable():
    model = kt.Transformer(V, target_vocab_size=V + 1, **SIZES)
    model.decoder.trainable = False
    changed = {path.split("/")[0] for path in trained(model)}
    assert changed == {"source_embedding", "encoder_block_0", "encoder_block_1"}


@costly_kinds
def test_each_frozen_layer_is_frozen_after_loading(kind, tmp_path):
    model = kind(V, **SIZES)
    side = "encoder" if kind is kt.TransformerEncoder else "decoder"
    model.get_layer("token_embedding").trainable = False
    block = model.get_layer(f"{side}_block_1")
    block.trainable = False
    block.feed_forward.trainable = True  # one part of a frozen block still trains
    model.get_layer(f"{side}_block_0").self_attention.trainable = False
    again = loaded(model, tmp_path)
    assert flags(again) == flags(model)
    assert trained(again) == {path for path, trainable in flags(model).items() if trainable}
    whole = kind(V, **SIZES)
    whole.trainable = False
    again = loaded(whole, tmp_path)
    assert not again.trainable and not any(flags(again).values())


@pytest.mark.parametrize("shared", [False, True])
def test_layers_inside_your_own_model_keep_their_settings(shared, tmp_path):
    x = keras.Input((None, 12))
    block = kt.EncoderBlock(2, 17, name="one")
    other = block if shared else kt.EncoderBlock(2, 17, name="two")
    attention = kt.MultiHeadAttention(2, 5, name="attention")
    y = other(block(x))
    model = keras.Model(x, keras.layers.Dense(3, name="head")(attention(y, y)))
    block.trainable = False
    attention.key_projection.trainable = False
    again = loaded(model, tmp_path)
    assert flags(again) == flags(model)
    assert len(again.trainable_weights) == len(model.trainable_weights)
    with pytest.warns(UserWarning, match=UNQUANTIZED):
        model.quantize("int8")
    values = np.random.default_rng(0).normal(size=(2, 3, 12)).astype("float32")
    np.testing.assert_array_equal(loaded(model, tmp_path)(values), model(values))


@kinds
def test_a_quantized_model_is_quantized_after_loading(kind, tmp_path):
    model = kind(V, **SIZES)
    with pytest.warns(UserWarning, match=UNQUANTIZED):
        model.quantize("int8")
    again = loaded(model, tmp_path)
    kernels = [w for w in again.weights if w.path.endswith("hidden/kernel")]
    assert [w.dtype for w in kernels] == ["int8"] * len(kernels) and kernels
    np.testing.assert_array_equal(again(inputs(again)), model(inputs(model)))


@pytest.mark.full
def test_a_search_uses_lora_weights_that_are_enabled_later():
    model, search = kt.Transformer(V, **SIZES), kt.BeamSearch(3)
    before = search(model, IDS, 7).scores.numpy()
    model.enable_lora(2)
    for weight in model.trainable_weights:
        weight.assign(np.full(weight.shape, 0.7))
    after = search(model, IDS, 7).scores.numpy()
    np.testing.assert_allclose(after, kt.BeamSearch(3)(model, IDS, 7).scores, rtol=1e-6)
    assert np.abs(after - before).max() > 1e-3


@costly_kinds
def test_lora_trains_the_updates_alone_and_saving_merges_them(kind, tmp_path):
    model = kind(V, **SIZES)
    before = np.asarray(model(inputs(model)))
    model.enable_lora(3)
    np.testing.assert_allclose(model(inputs(model)), before, atol=1e-6)  # B starts with zeros
    attentions = 6 if kind is kt.Transformer else 2
    assert len(model.trainable_weights) == attentions * 2 * 2
    assert {path.split("/")[-1] for path in trained(model)} == {"lora_kernel_a", "lora_kernel_b"}
    again = loaded(model, tmp_path)
    np.testing.assert_allclose(again(inputs(again)), model(inputs(model)), atol=1e-5)
    assert len(again.trainable_weights) == len(model.trainable_weights)


def test_a_model_must_be_compiled_after_lora():
    model = kt.CausalTransformer(V, **SIZES)
    model.compile("adam", kt.SequenceCrossentropy())
    model.fit(IDS, IDS, verbose=0)
    model.enable_lora(2)
    with pytest.raises(ValueError, match="compile"):
        model.fit(IDS, IDS, verbose=0)
    model.compile("adam", kt.SequenceCrossentropy())
    model.fit(IDS, IDS, verbose=0)


@kinds
def test_a_model_has_the_dtype_policy_of_its_layers(kind, tmp_path):
    model = kind(V, **SIZES, dtype="mixed_bfloat16")
    assert model.dtype_policy.name == "mixed_bfloat16"
    assert model.compute_dtype == "bfloat16" and model.variable_dtype == "float32"
    assert loaded(model, tmp_path).dtype_policy.name == "mixed_bfloat16"
    assert kind(V, **SIZES).dtype_policy.name == "float32"
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="mixed_bfloat16")
    assert kind(V, **SIZES, dtype=policies).get_layer("token_embedding").compute_dtype == "bfloat16"
    with pytest.raises(ValueError, match="model.quantize"):
        kind(V, **SIZES, dtype="int8_from_float32")


@pytest.mark.full
def test_a_copy_by_configuration_can_search_and_a_clone_is_refused():
    model = kt.Transformer(V, **SIZES)
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    ids = [kt.GreedySearch()(each, IDS, 5).ids.numpy() for each in (model, copy)]
    np.testing.assert_array_equal(*ids)
    with pytest.raises(TypeError, match="from_config"):  # clones lack our methods
        kt.GreedySearch()(keras.models.clone_model(model), IDS, 5)


def test_logits_are_float32_under_mixed_precision():
    model = kt.CausalTransformer(211, **SIZES, dtype="mixed_bfloat16", output_bias=True)
    ids = np.random.default_rng(1).integers(4, 211, (16, 64)).astype("int32")
    logits = np.asarray(model(ids))
    rounded = np.asarray(keras.ops.cast(keras.ops.cast(logits, "bfloat16"), "float32"))
    assert np.mean(logits == rounded) < 0.1
    top = np.sort(logits, axis=-1)
    assert (top[..., -1] > top[..., -2]).all()  # no two largest logits are equal
    model.get_layer("token_embedding").bias.assign(np.full(211, 1.0 + 2.0**-10))
    np.testing.assert_allclose(model(ids) - logits, 1.0 + 2.0**-10, atol=1e-5)


class WithHead(kt.Transformer):
    """A subclass that adds a layer."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.head = keras.layers.Dense(3, name="head")
        self.head.build((None, 12))


def test_layers_of_a_subclass_keep_their_settings(tmp_path):
    model = WithHead(V, **SIZES)
    model.head.trainable = False
    model.head.quantize("int8")
    with keras.saving.custom_object_scope({"WithHead": WithHead}):
        again = loaded(model, tmp_path)
    assert flags(again) == flags(model) and not again.head.trainable
    assert again.head.quantization_mode == "int8"


def test_a_model_made_in_a_name_scope_keeps_its_settings(tmp_path):
    with keras.name_scope("generator"):
        model = kt.CausalTransformer(V, **SIZES)
    model.get_layer("decoder_block_0").feed_forward.trainable = False
    again = loaded(model, tmp_path)
    assert sum(flags(again).values()) == sum(flags(model).values()) == len(model.weights) - 4


def test_the_layers_of_a_passed_encoder_can_be_frozen_one_by_one():
    frames = keras.Input((None, 5), name="frames")
    x = keras.layers.Dense(12, name="first")(frames)
    encoder = keras.Model(frames, keras.layers.Dense(12, name="second")(x))
    for layer in encoder.layers:
        layer.trainable = False
    model = kt.Transformer(V, **SIZES, encoder=encoder)
    assert encoder.trainable
    encoder.get_layer("second").trainable = True  # unfrozen layer by layer
    assert {w.path for w in model.trainable_weights} >= {"second/kernel", "second/bias"}


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"rank": 0}, ValueError, "rank must be at least 1"),
        ({"rank": 2, "names": "query"}, TypeError, "list of names"),
        ({"rank": 2, "names": ["queries"]}, ValueError, "no Dense layer .* the names .'queries'"),
    ],
)
def test_lora_chooses_layers_by_name_and_a_refusal_changes_nothing(options, error, message):
    model = kt.CausalTransformer(V, **SIZES)
    with pytest.raises(error, match=message):
        model.enable_lora(**options)
    assert all(flags(model).values())
    model.enable_lora(2, names=("hidden",))
    assert all("feed_forward/hidden" in w.path for w in model.trainable_weights)
    before = flags(model)
    with pytest.raises(ValueError, match="already enabled"):
        model.enable_lora(2, names=("hidden",))
    assert flags(model) == before
