"""`kt.recompute` changes memory and time of training, and nothing else."""

import re

import keras
import numpy as np
import pytest
from helpers import tiers

import keras_transformer as kt

V, B, S, T = 23, 5, 7, 11
RNG = np.random.default_rng(0)
SIZES = {"num_layers": 2, "d_model": 12, "num_heads": 2, "dropout": 0.3}
# Without the kink of ReLU, where a difference of 1e-8 can change a gradient.
NETWORK = {"d_ff": 17, "activation": "gelu"}


def padded_ids(length):
    ids = RNG.integers(4, V, (2 * B, length)).astype("int32")
    return np.where(np.arange(length) < RNG.integers(1, length + 1, (2 * B, 1)), ids, 0)


SOURCE, TARGET, LABELS = padded_ids(S), padded_ids(T), padded_ids(T)


@keras.saving.register_keras_serializable("test_recomputation")
class Network(keras.Layer):
    """A feed-forward network with a state, and a loss that depends on its input."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = keras.layers.BatchNormalization(dtype=self.dtype_policy)
        self.dense = keras.layers.Dense(12, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, input_shape):
        self.norm.build(input_shape)
        self.dense.build(input_shape)

    def call(self, inputs):
        x = self.dense(self.norm(inputs))
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(keras.ops.cast(x, "float32"))))
        return x


def transformer(**arguments):
    inputs = {"source_ids": SOURCE, "target_ids": TARGET}
    return kt.Transformer(V, **SIZES, **arguments), inputs


def tagger():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 12, mask_zero=True)(ids)
    for _ in range(2):
        x = kt.EncoderBlock(2, **NETWORK, dropout=0.3, attention_dropout=0.2)(x)
    return keras.Model(ids, keras.layers.Dense(V)(x)), TARGET


def tuned():
    model = kt.CausalTransformer(V, **SIZES, **NETWORK)
    model.enable_lora(rank=3)
    return model, TARGET


MODELS = {
    "attention dropout": lambda: transformer(**NETWORK, attention_dropout=0.2),
    "functional": tagger,
    "shared bias": lambda: transformer(
        **NETWORK, norm_first=True, positions=kt.RelativePositionBias()
    ),
    "recurrent": lambda: transformer(**NETWORK, recurrent_decoder=True),
    "state and loss": lambda: transformer(feed_forward=Network()),
    "low rank": tuned,
    "mixed": lambda: transformer(**NETWORK, dtype="mixed_bfloat16"),
}


def trained(name, change, **compiled):
    """Trains a new model for four updates; returns its losses and itself."""
    keras.utils.set_random_seed(1)
    model, inputs = MODELS[name]()
    change(model)
    # Weights then differ as much as gradients do; Adam would enlarge small differences.
    model.compile(keras.optimizers.SGD(0.5), kt.SequenceCrossentropy(), **compiled)
    history = model.fit(inputs, LABELS, batch_size=B, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], model


@pytest.mark.full
@pytest.mark.nightly("shared bias-compiled2", "recurrent-compiled3")
@pytest.mark.parametrize(
    ("name", "compiled"),
    [
        pytest.param("attention dropout", {}, marks=pytest.mark.numeric),
        *(tiers.full(name, {}) for name in MODELS if name != "attention dropout"),
        tiers.full("attention dropout", {"jit_compile": True}),
        tiers.full("attention dropout", {"run_eagerly": True}),
    ],
)
def test_losses_weights_and_states_equal_plain_training(name, compiled):
    """The backward pass adds up gradients in another order, which rounds differently."""
    tolerance = 2e-2 if name == "mixed" else 1e-5
    losses, plain = trained(name, lambda model: None, **compiled)
    found, model = trained(name, kt.recompute, **compiled)
    np.testing.assert_allclose(found, losses, rtol=tolerance)
    # Keras numbers layers without a name in the order of their construction.
    paths = [[re.sub(r"_\d+", "", v.path) for v in each.weights] for each in (model, plain)]
    assert paths[0] == paths[1]
    for weight, expected in zip(model.variables, plain.variables, strict=True):
        bound = 0 if "seed" in weight.path else tolerance
        np.testing.assert_allclose(weight, expected, rtol=0, atol=bound, err_msg=weight.path)


def operations(model, ids):
    """Returns the types of the operations of a training step, and of a forward pass."""
    import tensorflow as tf

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids, training=True))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    functions = step, tf.function(model)
    graphs = [function.get_concrete_function(ids).graph for function in functions]
    return [[operation.type for operation in graph.get_operations()] for graph in graphs]


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="reads TensorFlow's graphs")
def test_a_step_computes_each_block_twice_and_inference_once():
    (plain, inference), (recomputed, unchanged) = (
        operations(change(kt.CausalTransformer(V, **SIZES, **NETWORK)), TARGET)
        for change in (lambda model: model, kt.recompute)
    )
    assert plain.count("Softmax") == 2
    assert recomputed.count("Softmax") == 4
    assert unchanged == inference


def test_a_saved_model_is_plain(tmp_path):
    model = kt.CausalTransformer(V, **SIZES, **NETWORK)
    config = model.get_config()
    kt.recompute(model).save(tmp_path / "model.keras")
    assert model.get_config() == config
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not any("call" in vars(block) for block in loaded.decoder_stack.blocks)
    np.testing.assert_array_equal(loaded(TARGET), model(TARGET))


def test_a_compile_before_is_refused_by_fit():
    model = kt.CausalTransformer(V, **SIZES, **NETWORK)
    model.compile("sgd", kt.SequenceCrossentropy())
    kt.recompute(model)
    with pytest.raises(ValueError, match="compile"):
        model.fit(TARGET, LABELS, verbose=0)


@pytest.mark.parametrize(
    ("change", "layer", "lacks"),
    [
        (kt.recompute, keras.layers.Dense(2), "contains no EncoderBlock"),
        (kt.quantization_aware, keras.layers.LayerNormalization(), "has no Dense"),
    ],
)
def test_a_model_without_layers_to_change_is_refused(change, layer, lacks):
    with pytest.raises(ValueError, match=f"no effect: 'sequential.*' {lacks}"):
        change(keras.Sequential([keras.Input((3,)), layer]))


@pytest.mark.parametrize("change", [kt.recompute, kt.quantization_aware])
@pytest.mark.parametrize("value", [5, "model.keras", None, kt.CausalTransformer])
def test_what_is_no_model_is_refused(change, value):
    with pytest.raises(TypeError, match=f"model must be a Keras model.*got {type(value).__name__}"):
        change(value)


def test_the_copy_for_int8_can_be_recomputed():
    model = kt.CausalTransformer(V, **SIZES, **NETWORK)
    quantization = kt.training.quantization
    assert not quantization.is_quantization_aware(kt.recompute(model))
    assert quantization.is_quantization_aware(kt.recompute(kt.quantization_aware(model)))
