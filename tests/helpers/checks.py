"""Random weights, gradients on any backend and `check_layer`, for the tests of all layers."""

import functools
import inspect
import json

import keras
import numpy as np

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")


def normal(*shape, scale=1.0, seed=0):
    """Returns float32 normal numbers that depend only on the seed."""
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype("float32")


def integers(low, high, *shape, seed=0):
    return np.random.default_rng(seed).integers(low, high, size=shape).astype("int32")


def numpy64(x):
    """Returns a tensor of any backend and dtype, even bfloat16, as float64."""
    return keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")).astype("float64")


def largest_difference(ours, expected):
    ours, expected = numpy64(ours), np.asarray(expected, "float64")
    assert ours.shape == expected.shape, f"{ours.shape} is not {expected.shape}"
    assert np.isfinite(ours).all()
    return np.abs(ours - expected).max()


def assert_close(ours, expected, atol=1e-5):
    difference = largest_difference(ours, expected)
    assert difference <= atol, f"max abs difference {difference:.2e} > {atol:.2e}"


# Unit roundoff: float16 keeps 11 bits of a number, bfloat16 8.
LOW_PRECISION = {"mixed_float16": 2.0**-11, "mixed_bfloat16": 2.0**-8}


def assert_rounding_only(ours, expected, policy, roundings):
    """Asserts that the RMS error is at most the error of `roundings` roundings in sequence.

    One rounding with unit roundoff u errs uniformly within +-u of the value: u / sqrt(3) in the
    root mean square. Independent roundings add up to sqrt(roundings / 3) u. Nothing enlarges them:
    products are summed in float32, and norms keep values at size 1. One rounding in three is that
    of a product. Where products drop digits instead, each errs by u in the mean, always towards 0,
    so these errors do not cancel: they add up to roundings / 3 u. An error below u / 10 would mean
    that nothing ran in low precision.
    """
    unit, expected = LOW_PRECISION[policy], np.asarray(expected, "float64")
    error = np.sqrt(np.mean((numpy64(ours) - expected) ** 2)) / np.sqrt(np.mean(expected**2))
    dropped = 0 if products_round(policy) else roundings / 3
    largest = (np.sqrt(roundings / 3) + dropped) * unit
    assert unit / 10 < error < largest, f"{error / unit:.2f} u"


@functools.cache
def products_round(policy):
    """Returns whether products on this processor round to nearest instead of dropping digits.

    TensorFlow drops digits of bfloat16 products on processors without AVX-512.
    """
    step = 2 * LOW_PRECISION[policy]  # from 1 to the next number
    row = np.zeros((1, 16))
    row[0, 0] = 1 + step
    dtype = policy.removeprefix("mixed_")
    cast = functools.partial(keras.ops.cast, dtype=dtype)
    product = keras.ops.matmul(cast(row), cast(np.full((16, 16), 1.75)))
    return numpy64(product)[0, 0] == 1.75 + 2 * step  # exactly: 1.75 + 1.75 steps


def randomise(layer, seed=0):
    """Randomises all weights, biases and norms too, so that misplaced weights show."""
    rng = np.random.default_rng(seed)
    for variable in sorted(layer.trainable_variables, key=lambda v: v.path):
        noise = rng.normal(size=variable.shape)
        if variable.path.endswith("gamma"):
            noise = 1.0 + 0.3 * noise
        elif len(variable.shape) == 1:
            noise = 0.3 * noise
        else:  # unit variance in, unit variance out; embeddings are (V, D)
            fan_in = variable.shape[variable.path.endswith("embeddings")]
            noise = noise / np.sqrt(fan_in)
        variable.assign(noise.astype("float32"))
    return layer


def path_of(variable, layer):
    """Returns the path below the layer's name. Paths in models have no model name."""
    if isinstance(layer, keras.Model):
        return variable.path
    return variable.path.split("/", 1)[1]


def weights_of(layer):
    """Returns {path: float64 array} of all weights."""
    return {path_of(v, layer): numpy64(v.value) for v in layer.weights}


def compiled(model):
    """Returns the model as a function of its inputs, compiled as a whole on JAX.

    JAX compiles anew for each shape. One program compiles far faster than single operations.
    """
    if keras.backend.backend() != "jax":
        return model
    import jax

    return jax.jit(lambda inputs: model(inputs))


def gradients(layer, cotangent, *args, **kwargs):
    """d sum(cotangent * layer(*args)) / d each trainable weight, {path: array}, on TF and JAX."""
    names = [path_of(v, layer) for v in layer.trainable_variables]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = keras.ops.sum(layer(*args, **kwargs) * cotangent)
        found = tape.gradient(loss, [v.value for v in layer.trainable_variables])
        found = [tf.convert_to_tensor(g) for g in found]  # an embedding's comes as IndexedSlices
    else:
        import jax

        fixed = [v.value for v in layer.non_trainable_variables]

        def loss(trainable):
            output, _ = layer.stateless_call(trainable, fixed, *args, **kwargs)
            return keras.ops.sum(output * cotangent)

        found = jax.jit(jax.grad(loss))([v.value for v in layer.trainable_variables])
    return dict(zip(names, map(numpy64, found), strict=True))


def check_gradients(found, weights, loss, step=1e-6, tolerance=1e-4):
    """Compares gradients with central differences of a float64 loss, one direction per weight.

    A central difference errs by step^2 (1e-12) times a third derivative plus 1e-16 / step (1e-10)
    of rounding. The tolerance, relative to |direction| |gradient|, thus allows only the float32
    rounding of the backward pass: some hundred products of relative error 6e-8 each. A gradient
    counts as at least 1 / 30 of the largest one, because terms that cancel to 0 (a key's bias
    moves all scores of a row alike) are still rounded.
    """
    rng = np.random.default_rng(0)
    assert sorted(found) == sorted(weights)
    largest = max(np.abs(gradient).max() for gradient in found.values())
    for path, weight in weights.items():
        direction = rng.normal(size=weight.shape)
        ahead = loss({**weights, path: weight + step * direction})
        behind = loss({**weights, path: weight - step * direction})
        slope = (ahead - behind) / (2 * step)
        ours = np.sum(found[path] * direction)
        size = np.linalg.norm(direction) * max(np.linalg.norm(found[path]), largest / 30)
        assert abs(ours - slope) <= tolerance * size, f"{path}: {ours} is not {slope}"


def check_layer(
    cls, config, inputs, tmp_path, *, call=None, output_dtype=None, masked=True, elsewhere=()
):
    """Tests the contract of every public layer.

    Args:
        cls: the layer class.
        config: a value other than the default for *every* argument of its constructor.
        inputs: list of NumPy arrays, the positional call arguments; batch and length come first.
        tmp_path: folder for the saved model.
        call: keyword arguments of the call.
        output_dtype: dtype of the output, if it is not the policy's compute dtype.
        masked: whether the output must carry the Keras mask of the first input.
        elsewhere: as in `check_config`.
    """
    call = call or {}
    check_config(cls, config, elsewhere)
    _check_saving(cls, config, inputs, call, tmp_path)
    for policy in POLICIES:
        _check_policy(cls, config, inputs, call, policy, output_dtype)
    if masked:
        _check_mask_passes(cls, config, inputs, call)


def check_config(cls, config, elsewhere=()):
    """Compares get_config with the constructor's signature: round trips miss a forgotten key.

    Arguments in `elsewhere` exclude others, and have separate tests.
    """
    assert keras.saving.get_registered_name(cls) == f"keras_transformer>{cls.__name__}"
    parameters = {
        name: parameter.default
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if name not in ("self", *elsewhere) and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    assert set(config) == set(parameters), "the test must set every argument of the constructor"
    for name, default in parameters.items():
        assert config[name] != default, f"{name} must differ from its default to be seen"
    named = {"name": "given"} if issubclass(cls, keras.Layer) else {}
    found = cls(**{**named, **config}).get_config()
    for name, value in {**named, **config}.items():
        if name == "dtype":  # serialised as a policy
            found_name = keras.dtype_policies.get(found["dtype"]).name
            assert found_name == value, f"dtype policy {found_name} is not {value}"
        else:
            assert found[name] == value, f"get_config()[{name!r}] is {found[name]!r}, not {value!r}"
    assert cls.from_config(json.loads(json.dumps(found))).get_config() == found


def _functional(cls, config, inputs, call):
    """Returns the layer in a functional model with dynamic lengths."""
    ends = [
        keras.Input(
            (*[None] * min(x.ndim - 1, 1), *x.shape[2:]), dtype=x.dtype.name, name=f"input_{i}"
        )
        for i, x in enumerate(inputs)
    ]
    output = cls(**config)(*ends, **call)
    return keras.Model(ends, output)


def _check_saving(cls, config, inputs, call, tmp_path):
    model = randomise(_functional(cls, config, inputs, call))
    path = tmp_path / "layer.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    expected = keras.ops.convert_to_numpy(model(inputs, training=False))
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(loaded(inputs, training=False)), expected
    )
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]

    layer = cls(**config)
    eager = layer(*inputs, **call)
    shapes = [x.shape for x in inputs]
    assert tuple(model.output_shape)[2:] == tuple(eager.shape)[2:] == expected.shape[2:]
    assert len(model.output_shape) == eager.ndim
    computed = layer.compute_output_shape(*shapes)
    assert tuple(computed) == tuple(eager.shape) == expected.shape
    spec = layer.compute_output_spec(*[keras.KerasTensor(x.shape, x.dtype.name) for x in inputs])
    assert tuple(spec.shape) == tuple(eager.shape)


def _check_policy(cls, config, inputs, call, policy, output_dtype):
    layer = cls(**config, dtype=policy)
    output = layer(*inputs, **call)
    expected = output_dtype or keras.DTypePolicy(policy).compute_dtype
    assert keras.backend.standardize_dtype(output.dtype) == expected
    assert {keras.backend.standardize_dtype(v.dtype) for v in layer.weights} <= {"float32"}
    assert np.isfinite(numpy64(output)).all()
    symbolic = _functional(cls, {**config, "dtype": policy}, inputs, call).output
    assert keras.backend.standardize_dtype(symbolic.dtype) == expected


def _check_mask_passes(cls, config, inputs, call):
    layer = cls(**config)
    assert layer.supports_masking
    ends = [keras.Input(x.shape[1:], dtype=x.dtype.name) for x in inputs]
    masked = [keras.layers.Masking()(ends[0]), *ends[1:]]
    output = layer(*masked, **call)
    mask = keras.Model(ends, output._keras_mask)
    zeroed = [np.array(x) for x in inputs]
    zeroed[0][0, -1] = 0.0  # Masking hides what is all zeros
    expected = np.ones(inputs[0].shape[:2], bool)
    expected[0, -1] = False
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(mask(zeroed)), expected)
