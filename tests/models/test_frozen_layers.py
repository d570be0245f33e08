"""Frozen, quantized and low-rank layers: in training, in saved files, and inside other models."""

import functools

import keras
import numpy as np
import pytest
from helpers.checks import normal, numpy64
from helpers.tiers import quick

import keras_transformer as kt

V, SIZES = 23, dict(num_layers=2, d_model=12, num_heads=2, d_ff=17, dropout=0.0)
IDS = np.array([[2, 5, 7, 11, 3], [2, 13, 3, 0, 0]], "int32")
KINDS = [kt.Transformer, kt.TransformerEncoder, kt.CausalTransformer]
kinds = pytest.mark.parametrize("kind", KINDS)
# Keras 3.15 warns of each layer, Keras 3.16 of all of them at once.
UNQUANTIZED = "does not have a `quantize` method|do not support quantization"
costly_kinds = pytest.mark.parametrize("kind", quick(KINDS, kt.Transformer))
FRAMES = normal(2, 5, 12)


def inputs(model):
    given = {tensor.name: IDS if "int" in tensor.dtype else FRAMES for tensor in model.inputs}
    return given if len(given) > 1 else next(iter(given.values()))


def trained(model, eager=True):
    """Returns paths of weights that two updates change. A graph takes four times as long."""
    before = {w.path: numpy64(w) for w in model.weights}
    has_logits = isinstance(model, kt.Transformer | kt.CausalTransformer)
    loss = kt.SequenceCrossentropy() if has_logits else "mse"
    model.compile(keras.optimizers.Adam(0.1), loss=loss, run_eagerly=eager)
    labels = IDS if has_logits else np.zeros(model(inputs(model)).shape)
    model.fit(inputs(model), labels, epochs=2, verbose=0)
    return {w.path for w in model.weights if (numpy64(w) != before[w.path]).any()}


def loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


def settings(model):
    return {w.path: (w.trainable, w.dtype) for w in model.weights}


def of_block(late):
    """Returns a model with a block that was frozen before it was built."""
    block, frames = kt.EncoderBlock(2, 17, trainable=late), keras.Input((None, 12))
    block.trainable = False
    return keras.Model(frames, keras.layers.Dense(2)(block(frames)))


def around_frozen_encoder():
    encoder = kt.TransformerEncoder(V, **SIZES, trainable=False)
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, keras.layers.Dense(2)(kt.SequencePooling()(encoder(ids))))


def own(shared=False):
    x, block = keras.Input((None, 12)), kt.EncoderBlock(2, 17, dropout=0.0, name="one")
    y = (block if shared else kt.EncoderBlock(2, 17, dropout=0.0, name="two"))(block(x))
    attention = kt.MultiHeadAttention(2, 5, name="attention")
    return keras.Model(x, keras.layers.Dense(3, name="head")(attention(y, y)))


@keras.saving.register_keras_serializable("tests")
class WithHead(kt.Transformer):
    """A subclass that adds a layer."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.head = keras.layers.Dense(3, name="head")
        self.head.build((None, 12))


def with_quantized_head():
    model = WithHead(V, **SIZES)
    model.head.trainable = False
    model.head.quantize("int8")
    return model


def with_frozen_layers_of_an_encoder():
    frames = keras.Input((None, 12), name="frames")
    x = keras.layers.Dense(12, name="first")(frames)
    encoder = keras.Model(frames, keras.layers.Dense(12, name="second")(x))
    for layer in encoder.layers:
        layer.trainable = False
    return kt.Transformer(V, **SIZES, encoder=encoder)


def some_layers(model):
    side = "encoder" if isinstance(model, kt.TransformerEncoder) else "decoder"
    first, second = (model.get_layer(f"{side}_block_{place}") for place in (0, 1))
    return [model.get_layer("token_embedding"), second, first.self_attention], second.feed_forward


def made(kind, **options):
    return functools.partial(kind, V, **SIZES, **options)


def nothing(model):
    return []


# A model, the layers that are frozen, then those that are not, and the number of trainable weights.
FROZEN = {
    "encoder": (made(kt.Transformer), lambda model: [model.encoder], nothing, 36),
    "decoder": (
        made(kt.Transformer, target_vocab_size=V + 1),
        lambda model: [model.decoder],
        nothing,
        25,
    ),
    **{
        f"layers of {kind.__name__}": (
            made(kind),
            lambda model: some_layers(model)[0],
            lambda model: [some_layers(model)[1]],
            count,
        )
        for kind, count in zip(KINDS, (42, 12, 12), strict=True)
    },
    **{kind.__name__: (made(kind), lambda model: [model], nothing, 0) for kind in KINDS},
    "model inside another": (around_frozen_encoder, nothing, nothing, 2),
    "block": (functools.partial(of_block, False), nothing, nothing, 2),
    "block, later": (functools.partial(of_block, True), nothing, nothing, 2),
    **{
        f"own, shared={shared}": (
            functools.partial(own, shared),
            lambda model: [model.get_layer("one"), model.get_layer("attention").key_projection],
            nothing,
            count,
        )
        for shared, count in ((True, 8), (False, 20))
    },
    "quantized head": (with_quantized_head, nothing, nothing, 61),
    "layer by layer": (
        with_frozen_layers_of_an_encoder,
        nothing,
        lambda model: [model.encoder.get_layer("second")],
        39,
    ),
}
LATE = [f"layers of {kind.__name__}" for kind in KINDS[1:]]
LATE += ["decoder", "own, shared=False", "quantized head", "block"]


@pytest.mark.full("encoder", "layers of Transformer", "own, shared=True")
@pytest.mark.parametrize("name", quick(FROZEN, *(name for name in FROZEN if name not in LATE)))
def test_frozen_layers_do_not_change_in_training_and_after_loading(name, tmp_path):
    make, frozen, thawed, count = FROZEN[name]
    model = make()
    for layers, trainable in ((frozen, False), (thawed, True)):
        for layer in layers(model):
            layer.trainable = trainable
    expected = {path for path, (trainable, _) in settings(model).items() if trainable}
    assert len(expected) == count
    assert not expected or trained(model, eager=name != "encoder") == expected
    again = loaded(model, tmp_path)  # with the optimizer's state: filterwarnings is "error"
    assert settings(again) == settings(model) and again.trainable == bool(count)
    assert not expected or trained(again) == expected


@pytest.mark.quick("CausalTransformer")
@pytest.mark.parametrize(
    "make", [*map(made, KINDS), own], ids=[*(kind.__name__ for kind in KINDS), "own"]
)
def test_a_quantized_model_is_quantized_after_loading(make, tmp_path):
    model = make()
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
def test_lora_trains_the_updates_alone(kind, tmp_path):
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


def first_block(model):
    return model.get_layer("encoder_block_0")


PARTS = {
    "a side": lambda model: [model.encoder],
    "a block": lambda model: [model.get_layer("encoder_block_0")],
    "an attention": lambda model: [model.get_layer("encoder_block_0").self_attention],
    "a projection": lambda model: [
        model.get_layer("encoder_block_0").self_attention.query_projection
    ],
    "all layers of a side": lambda model: model.encoder.layers,
    "the other side": lambda model: [model.decoder],
    "the model": lambda model: [model],
}


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("frozen_before", quick([False, True], True))
@pytest.mark.parametrize("part", quick(PARTS, "a side", "a projection", "the other side"))
def test_updates_of_lora_can_be_frozen(part, frozen_before, saved, tmp_path):
    model = kt.Transformer(V, **SIZES)
    model.encoder.trainable = not frozen_before
    model.enable_lora(3)
    model = loaded(model, tmp_path) if saved else model
    updates = {weight.path for weight in model.trainable_weights}
    assert len(updates) == 24
    frozen = set()
    for layer in PARTS[part](model):
        frozen |= {weight.path for weight in layer.weights} & updates
        layer.trainable = False
    assert frozen
    assert {weight.path for weight in model.trainable_weights} == updates - frozen
    if part in ("a side", "a block"):
        assert trained(model) == updates - frozen


def test_updates_inside_another_model_can_be_frozen():
    encoder = kt.TransformerEncoder(V, **SIZES)
    encoder.enable_lora(3)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(2, name="head")(kt.SequencePooling()(encoder(ids))))
    assert len(model.trainable_weights) == 10
    encoder.trainable = False
    assert {weight.path for weight in model.trainable_weights} == {"head/kernel", "head/bias"}


def updated(model):
    model.enable_lora(3)
    return model


def small(kind):
    return kind(V, **SIZES)


def as_ours(model):
    return kt.Model(model.input, model.output)


def with_own_projection():
    """A head whose own layer gets updates, too."""
    encoder = kt.TransformerEncoder(V, **SIZES)
    return kt.Model(encoder.input, keras.layers.Dense(5, name="query")(encoder.output))


def around(kind):
    """An encoder with updates, which is one layer of a model."""
    ids, encoder = keras.Input((None,), dtype="int32"), kt.TransformerEncoder(V, **SIZES)
    encoder.enable_lora(3)
    return kind(ids, keras.layers.Dense(2, name="head")(encoder(ids)))


UPDATED = {
    "Transformer": lambda: updated(small(kt.Transformer)),
    "TransformerEncoder": lambda: updated(small(kt.TransformerEncoder)),
    "CausalTransformer": lambda: updated(small(kt.CausalTransformer)),
    "own projection": lambda: updated(with_own_projection()),
    "block": lambda: updated(as_ours(own())),
    "shared": lambda: updated(as_ours(own(shared=True))),
    "inside": functools.partial(around, kt.Model),
    "inside of Keras'": functools.partial(around, keras.Model),
}
QUICK = ("CausalTransformer", "shared", "inside of Keras'")
updated_models = pytest.mark.parametrize("name", quick(UPDATED, *QUICK))


def differing(model, other):
    pairs = zip(model.weights, other.weights, strict=True)
    return [one.path for one, two in pairs if (numpy64(one) != numpy64(two)).any()]


@pytest.mark.quick("CausalTransformer")
@updated_models
def test_a_loaded_model_with_updates_trains_as_the_saved_one(name, tmp_path):
    # Without dropout: Keras does not save the states of its random numbers.
    model = UPDATED[name]()
    assert trained(model)
    again = loaded(model, tmp_path)
    assert differing(model, again) == []
    has_logits = isinstance(model.loss, kt.SequenceCrossentropy)
    labels = IDS if has_logits else np.zeros(model(inputs(model)).shape)
    for each in (model, again):  # with the state of the optimizer
        each.fit(inputs(each), labels, epochs=2, verbose=0, shuffle=False)
    assert differing(model, again) == []


@pytest.mark.quick("CausalTransformer")
@updated_models
def test_weights_load_with_their_updates_or_merged_or_begin_new_ones(name, tmp_path):
    model = UPDATED[name]()
    trained(model)
    model.save_weights(tmp_path / "a.weights.h5")
    with_updates = UPDATED[name]()
    with_updates.load_weights(tmp_path / "a.weights.h5")
    assert differing(model, with_updates) == []
    if name in ("Transformer", "TransformerEncoder", "CausalTransformer"):
        plain = small(getattr(kt, name))
        plain.load_weights(tmp_path / "a.weights.h5")
        np.testing.assert_allclose(plain(inputs(plain)), model(inputs(model)), atol=1e-5)
        plain.save_weights(tmp_path / "b.weights.h5")
        new = UPDATED[name]()
        new.load_weights(tmp_path / "b.weights.h5")
        np.testing.assert_array_equal(new(inputs(new)), plain(inputs(plain)))
        assert trained(new) == {weight.path for weight in new.trainable_weights}


@pytest.mark.full("2-options0")
@pytest.mark.parametrize("rank, options", [(2, {}), (3, {"lora_alpha": 6})])
def test_other_updates_load_the_merged_kernel(rank, options, tmp_path):
    model = kt.CausalTransformer(V, **SIZES)
    for each in model._flatten_layers():
        if each.name in ("query", "value"):
            each.enable_lora(rank, **options)
    trained(model)
    model.save_weights(tmp_path / "a.weights.h5")
    other = UPDATED["CausalTransformer"]()
    other.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_allclose(other(inputs(other)), model(inputs(model)), atol=1e-5)
    assert trained(other) == {weight.path for weight in other.trainable_weights}


def test_a_model_must_be_compiled_after_lora():
    model = kt.CausalTransformer(V, **SIZES)
    trained(model)
    model.enable_lora(2)
    with pytest.raises(ValueError, match="compile"):
        model.fit(IDS, IDS, verbose=0)
    assert trained(model)


@kinds
def test_a_model_has_the_dtype_policy_of_its_layers(kind, tmp_path):
    model = kind(V, **SIZES, dtype="mixed_bfloat16")
    for each in (model, loaded(model, tmp_path)):
        assert each.dtype_policy.name == "mixed_bfloat16"
    assert kind(V, **SIZES).dtype_policy.name == "float32"
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="mixed_bfloat16")
    assert kind(V, **SIZES, dtype=policies).get_layer("token_embedding").compute_dtype == "bfloat16"
    with pytest.raises(ValueError, match="model.quantize"):
        kind(V, **SIZES, dtype="int8_from_float32")


def test_a_search_of_a_clone_is_refused():
    clone = keras.models.clone_model(kt.Transformer(V, **SIZES))  # clones lack our methods
    with pytest.raises(TypeError, match="from_config"):
        kt.GreedySearch()(clone, IDS, 5)


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


def test_a_model_made_in_a_name_scope_keeps_its_settings(tmp_path):
    with keras.name_scope("generator"):
        model = kt.CausalTransformer(V, **SIZES)
    model.get_layer("decoder_block_0").feed_forward.trainable = False
    again = loaded(model, tmp_path)
    counts = [len(each.trainable_weights) for each in (again, model)]
    assert counts == [len(model.weights) - 4] * 2


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"rank": 0}, ValueError, "rank must be at least 1"),
        ({"rank": 13}, ValueError, "rank must be at most 12, .* but 13 was passed"),
        ({"rank": 2, "names": "query"}, TypeError, "list of names"),
        ({"rank": 2, "names": ["queries"]}, ValueError, "no Dense layer of the names .'queries'"),
        ({"rank": 2, "names": ["query", "vlaue"]}, ValueError, "names .'vlaue'.*'value'"),
    ],
)
def test_lora_chooses_layers_by_name_and_a_refusal_changes_nothing(options, error, message):
    model = kt.CausalTransformer(V, **SIZES)
    with pytest.raises(error, match=message):
        model.enable_lora(**options)
    assert len(model.trainable_weights) == len(model.weights)
    model.enable_lora(2, names=("hidden",))
    assert all("feed_forward/hidden" in w.path for w in model.trainable_weights)
    before = settings(model)
    for each in (model, as_ours(model)):
        for names in ("hidden", "query"):
            with pytest.raises(ValueError, match="already enabled"):
                each.enable_lora(2, names=(names,))
    assert settings(model) == before


def of_two_parts():
    return kt.Transformer(V, **SIZES, encoder=kt.TransformerEncoder(V, **SIZES))


@pytest.mark.parametrize(
    "make",
    quick([*(functools.partial(small, kind) for kind in KINDS), of_two_parts, own], of_two_parts),
)
def test_merged_updates_are_weights(make, tmp_path):
    model = make()
    count, model = len(model.weights), model if isinstance(model, kt.Model) else as_ours(model)
    updated(model)
    trained(model)
    before = np.asarray(model(inputs(model)))
    model.merge_lora()
    assert len(model.weights) == count
    np.testing.assert_array_equal(model(inputs(model)), before)
    with pytest.raises(ValueError, match="merge_lora .*compile again"):
        model.fit(inputs(model), IDS, verbose=0)
    changed = trained(model)
    if make is not of_two_parts:  # its tables share a path
        assert changed == {w.path for w in model.trainable_weights}
    assert all(w.path.split("/")[-1] in ("kernel", "bias") for w in model.trainable_weights)
    again = loaded(model, tmp_path)
    assert differing(model, again) == []
    with pytest.raises(ValueError, match="no updates"):
        again.merge_lora()
    again.enable_lora(2, names=("key",))
    assert trained(again)
    assert {weight.path.split("/")[-2] for weight in again.trainable_weights} == {"key"}


@pytest.mark.full
def test_kernels_that_train_beside_their_updates_train_in_a_loaded_model(tmp_path):
    model = updated(small(kt.Transformer))
    model.encoder.trainable = False
    model.encoder.trainable = True
    trained(model)
    again = loaded(model, tmp_path)
    assert [w.trainable for w in again.weights] == [w.trainable for w in model.weights]
    for each in (model, again):
        each.fit(inputs(each), IDS, epochs=2, verbose=0, shuffle=False)
    assert differing(model, again) == []


@pytest.mark.quick("True-Model1")
@pytest.mark.parametrize("kind", [kt.Model, keras.Model])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_prediction_after_merging_has_the_updates_once(kind, compiled):
    encoder = updated(kt.TransformerEncoder(V, **SIZES))
    for weight in encoder.trainable_weights:
        weight.assign(normal(*weight.shape))
    model = kind(encoder.input, keras.layers.Dense(2)(encoder.output))
    if compiled:
        model.compile("adam", "mse")
    before = [each.predict(IDS, verbose=0) for each in (encoder, model)]
    encoder.merge_lora()
    for each, expected in zip((encoder, model), before, strict=True):
        np.testing.assert_allclose(each.predict(IDS, verbose=0), expected, atol=1e-5)
