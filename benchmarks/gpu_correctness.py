"""Errors of every layer and model on a device, against the tests' float64 reference in NumPy.

Weights and inputs are random and new in each run. An error is relative to the root mean square of
the reference's output. Its limit is a multiple of the precision's unit roundoff.

Shapes: B batch, T target length, S source length, D d_model, H heads.
"""

import importlib
import sys

import bench
import devices
import numpy as np
from bench import Missing, WorkerError

# Unit roundoffs, and the largest allowed error in these units. Rounding errors add up as their root
# mean square: 8 units are about 200 roundings in sequence, far more than these models have. float32
# gets more, because the order of long sums depends on the machine.
UNIT = {"float32": 2.0**-24, "tf32": 2.0**-11, "bfloat16": 2.0**-8, "float16": 2.0**-11}
UNITS_ALLOWED = {"float32": 64, "tf32": 8, "bfloat16": 8, "float16": 8}


def tests_module(name):
    """Imports a module of the checkout's `tests/helpers`, such as the float64 reference."""
    tests = bench.ROOT / "tests"
    if not (tests / "helpers" / f"{name}.py").exists():
        raise Missing(f"{tests}: the reference is part of the checkout")
    if str(tests) not in sys.path:
        sys.path.append(str(tests))
    return importlib.import_module(f"helpers.{name}")


def correctness(task):
    """Computes errors of every layer and model in every precision of the device.

    Args:
        task: dict with "device", "seed" and "quick" (small sizes).

    Returns:
        Dict with "rows": one per layer and precision, with its limit, and its error or exception.
        After an exception, the other layers still run.

    Raises:
        Missing: the backend sees no GPU, or the checkout has no reference.
    """
    devices.use_checkout()
    import keras

    backend = keras.backend.backend()
    gpu = task["device"] == "gpu"
    if gpu and not devices.gpus(backend):
        raise Missing(f"{backend} sees no GPU")
    tests_module("checks")
    # CPUs have no TF32 units.
    precisions = [p for p in devices.PRECISIONS if gpu or p != "tf32"]
    rows = []
    for precision in precisions:
        devices.set_precision(backend, precision)
        dtype = devices.dtype_policy(precision)
        generator = np.random.default_rng([task["seed"], precisions.index(precision)])
        for name, make, *case in cases(generator, task["quick"]):
            try:
                seed = int(generator.integers(2**31))
                row = errors(make(dtype), *case, unit=UNIT[precision], seed=seed, gpu=gpu)
            except Exception as error:  # the other layers still run
                row = {"error": f"{type(error).__name__}: {error}"[:200]}
            limit = UNIT[precision] * UNITS_ALLOWED[precision]
            rows.append({"layer": name, "precision": precision, "limit": limit, **row})
    return {"rows": rows}


def errors(layer, inputs, options, expected, *, unit, seed, gpu):
    """Computes errors of a layer with random weights, relative to the expected output.

    Args:
        layer: the layer or model.
        inputs, options: arguments of its call.
        expected: function from {path: float64 array} to the expected output.
        unit: unit roundoff of the precision; "units" is the error in such roundings.
        seed: int, for the weights.
        gpu: whether the output must be on a GPU.
    """
    checks = tests_module("checks")
    layer(*inputs, **options)  # builds it
    if layer.weights:
        checks.randomise(layer, seed=seed)
    output = layer(*inputs, **options)
    if gpu and not devices.on_gpu(output):
        raise WorkerError(f"it ran on {output.device}, not on the GPU")
    wanted, found = expected(checks.weights_of(layer)), checks.numpy64(output)
    size = np.sqrt(np.mean(wanted**2))
    error = float(np.sqrt(np.mean((found - wanted) ** 2)) / size)
    largest = float(np.max(np.abs(found - wanted)) / size)
    return {"relative_error": error, "largest_error": largest, "units": error / unit}


def cases(generator, quick):
    """Yields every layer and model: name, maker, inputs, options and reference.

    The maker takes a dtype policy; the reference takes {path: float64 array}.
    """
    import keras_transformer as kt

    reference = tests_module("reference")
    B, T, S, D, H, F, V, N = (
        (2, 5, 7, 24, 4, 31, 61, 2) if quick else (5, 29, 37, 256, 4, 509, 997, 4)
    )
    x, memory = (generator.normal(size=(B, n, D)).astype("float32") for n in (T, S))
    source, target = (generator.integers(1, V, (B, n)).astype("int32") for n in (S, T))
    source[0, -2:] = target[-1, -2:] = 0  # padding
    mask, memory_mask = target != 0, source != 0
    wide = mask[:, None], memory_mask[:, None]  # (B, 1, T), (B, 1, S)
    heads = generator.normal(size=(B, H, T, D // H)).astype("float32")
    long = [a.astype("float64") for a in (x, memory, heads)]
    config = dict(num_layers=N, d_model=D, num_heads=H, d_ff=F)
    ids = {"source_ids": source, "target_ids": target}

    def layer(cls, *arguments, **keywords):
        return lambda policy: cls(*arguments, **keywords, dtype=policy)

    block = layer(kt.EncoderBlock, H, F, dropout=0.0)
    yield (
        "MultiHeadAttention",
        layer(kt.MultiHeadAttention, H, D // H),
        [x, memory],
        {"attention_mask": memory_mask},
        lambda w: reference.multi_head_attention(w, H, long[0], long[1], mask=wide[1])[0],
    )
    yield (
        "AdditiveAttention",
        layer(kt.AdditiveAttention, D),
        [x, memory],
        {"attention_mask": memory_mask},
        lambda w: reference.additive_attention(w, long[0], long[1], long[1], wide[1]),
    )
    yield (
        "FeedForward",
        layer(kt.FeedForward, F),
        [x],
        {},
        lambda w: reference.feed_forward(w, long[0]),
    )
    yield (
        "TokenEmbedding",
        layer(kt.TokenEmbedding, V, D),
        [source],
        {},
        lambda w: w["embeddings"][source] * D**0.5,
    )
    yield (
        "SinusoidalPositionEncoding",
        layer(kt.SinusoidalPositionEncoding),
        [x],
        {},
        lambda w: long[0] + reference.sinusoids(T, D),
    )
    yield (
        "LearnedPositionEncoding",
        layer(kt.LearnedPositionEncoding, T + 2),
        [x],
        {},
        lambda w: long[0] + w["embeddings"][:T],
    )
    yield (
        "RotaryPositionEncoding",
        layer(kt.RotaryPositionEncoding),
        [heads],
        {},
        lambda w: reference.rotate(long[2]),
    )
    yield (
        "EncoderBlock",
        block,
        [x],
        {"attention_mask": mask},
        lambda w: reference.encoder_block(w, long[0], mask, num_heads=H),
    )
    yield (
        "DecoderBlock",
        layer(kt.DecoderBlock, H, F, dropout=0.0),
        [x, memory],
        {"attention_mask": mask, "memory_mask": memory_mask},
        lambda w: reference.decoder_block(w, *long[:2], mask, memory_mask, num_heads=H),
    )
    yield (
        "TransformerEncoder",
        layer(kt.TransformerEncoder, V, **config),
        [source],
        {},
        lambda w: reference.transformer_encoder(w, config, source),
    )
    yield (
        "CausalTransformer",
        layer(kt.CausalTransformer, V, **config),
        [target],
        {},
        lambda w: reference.causal_transformer(w, config, target),
    )
    yield (
        "Transformer",
        layer(kt.Transformer, V, **config),
        [ids],
        {},
        lambda w: reference.transformer(w, config, source, target),
    )
