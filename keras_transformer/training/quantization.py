"""Quantization-aware training of models that are served in 8-bit integers.

`quantization_aware` copies a model. Products with weights and tables of embeddings compute in the
copy what an export of precision "int8" computes.

Shapes: K rows and N columns of a weight, D numbers of an embedding.
"""

import functools

import keras
from keras import layers, ops

from keras_transformer.layers.checks import check_model
from keras_transformer.layers.embeddings import SegmentEmbedding, TokenEmbedding
from keras_transformer.types import Tensor

# Entries of an embedding that share a scale, as in the exported file.
BLOCK = 32


def quantization_aware(model: keras.Model) -> keras.Model:
    """Returns a copy of a model that computes as its int8 export does, for training with `fit`.

    A file of `export_onnx(..., precision="int8")` rounds weights and inputs of products to 8 bits.
    Training the copy adapts the weights to this rounding. The copy keeps float32 weights. Saved or
    exported, it is a plain model with these weights; its int8 file has the same nodes and size.

    The copy rounds the products of `Dense` layers (projections of attention, feed-forward networks,
    heads), the product of the logits, and the vectors that `Embedding`, `TokenEmbedding` and
    `SegmentEmbedding` look up. It does not round scores of attention, norms, biases and positions.
    The file has ONNX Runtime's `DynamicQuantizeMatMul` and `GatherBlockQuantized`, which round as
    follows:

    - A column w of a weight (K, N) has the scale s = max(abs(w)) / 127 and integers round(w / s).
    - An input has one scale s = (max - min) / 255 for the whole tensor, where 0 counts as an entry,
      the zero point z = round(-min / s), and integers round(x / s) in [-z, 255 - z].
    - Sums of products of integers are exact in float32 below 2^24. Both scales then multiply them.
    - In an embedding, 32 entries share a scale, and the largest becomes -128.

    The scale of an input covers a whole batch. So results depend slightly on the other rows, in the
    copy and in the file. On several replicas the tensor is one replica's part of the batch.
    Training rounds all positions of a target together, but a search rounds each step alone, which
    is more exact.

    The gradient treats the rounded numbers as if they were not rounded (straight-through estimator,
    Bengio et al., arXiv 1308.3432, section 4).

    Call this before `compile`, under the strategy's scope, if any. After an interruption call it
    again; `Run.fit` restores the weights. To keep the answers of the float32 model, pass
    that model to `Distillation` as the teacher.

    Args:
        model: functional Keras model, such as `Transformer`.

    Returns:
        A copy of the model with its own weights, not compiled.

    Raises:
        TypeError: `model` is not a Keras model.
        ValueError: the model has a layer that Keras has quantized, a layer that an export rounds
            but this function does not support, such as `EinsumDense`, or no layer that an export
            rounds.

    Example:

    >>> model = kt.Transformer(vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> student = kt.quantization_aware(model)
    >>> student.compile("adam", kt.SequenceCrossentropy())
    """
    check_model(model)
    for layer in model._flatten_layers():
        unsupported = isinstance(layer, layers.EinsumDense | layers.ReversibleEmbedding)
        if unsupported or layer.quantization_mode is not None:
            raise ValueError(
                f"{type(layer).__name__} {layer.path!r} cannot be trained for int8. Use only "
                "float layers of the classes Dense, Embedding, TokenEmbedding and "
                "SegmentEmbedding, and layers without products of weights."
            )
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    copy = keras.saving.deserialize_keras_object(config)
    copy.set_weights(model.get_weights())
    for layer in copy._flatten_layers():
        if isinstance(layer, TokenEmbedding):
            layer.product, layer.look_up = integer_product, look_up_rounded
        elif isinstance(layer, SegmentEmbedding):
            layer.look_up = look_up_rounded
        elif isinstance(layer, layers.Dense):
            layer.call = functools.partial(_call_dense, layer)
        elif isinstance(layer, layers.Embedding):
            layer.call = functools.partial(_call_embedding, layer)
    if not is_quantization_aware(copy):
        raise ValueError(
            f"quantization_aware would have no effect: {model.name!r} has no Dense, Embedding, "
            "TokenEmbedding or SegmentEmbedding. Export it as it is."
        )
    return copy


def is_quantization_aware(model: keras.Model) -> bool:
    """Returns whether a model is a copy by `quantization_aware`, or contains a layer of one."""
    own = [
        vars(layer).get(name) for layer in model._flatten_layers() for name in ("call", "look_up")
    ]
    rounding = look_up_rounded, _call_dense, _call_embedding
    return any(getattr(function, "func", function) in rounding for function in own)


def integer_product(inputs: Tensor, kernel: Tensor) -> Tensor:
    """Computes x W in 8-bit integers: (..., K), (K, N) -> (..., N) float32."""
    x, kernel = ops.cast(inputs, "float32"), ops.cast(kernel, "float32")
    constant = ops.stop_gradient(x)
    low = ops.minimum(ops.min(constant, initial=0.0), 0.0)
    high = ops.maximum(ops.max(constant, initial=0.0), 0.0)
    scale = _nonzero((high - low) / 255.0)
    zero = ops.round(-low / scale)
    integers = _rounded(x / scale, -zero, 255.0 - zero)
    largest = ops.max(ops.abs(ops.stop_gradient(kernel)), axis=0)  # (N,)
    scales = _nonzero(largest / 127.0)
    columns = _rounded(kernel / scales, -127.0, 127.0)
    return ops.matmul(integers, columns) * (scale * scales)


def look_up_rounded(table: Tensor, ids: Tensor, axis: int = 0) -> Tensor:
    """Picks rows of a table (V, D) and rounds them: ids (...) -> (..., D)."""
    return round_blocks(ops.take(table, ids, axis=axis))


def round_blocks(vectors: Tensor) -> Tensor:
    """Rounds vectors (..., D) to 8 bits; every 32 entries share a scale."""
    size = vectors.shape[-1]
    width = -(-size // BLOCK) * BLOCK
    x = ops.cast(vectors, "float32")
    x = ops.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, width - size)])
    blocks = ops.reshape(x, (*ops.shape(x)[:-1], width // BLOCK, BLOCK))
    constant = ops.stop_gradient(blocks)
    # Of two entries of equal size the exporter takes the first, and its sign matters.
    first = ops.argmax(ops.abs(constant), axis=-1, keepdims=True)
    scale = _nonzero(ops.take_along_axis(constant, first, axis=-1) / -128.0)
    blocks = _rounded(blocks / scale, -128.0, 127.0) * scale
    return ops.cast(ops.reshape(blocks, ops.shape(x))[..., :size], vectors.dtype)


def _rounded(x: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Rounds to integers in [low, high]; the gradient is as without rounding."""
    constant = ops.stop_gradient(x)
    # x - constant is 0, so the integers are exact.
    return ops.clip(ops.round(constant), low, high) + (x - constant)


def _nonzero(scale: Tensor) -> Tensor:
    return ops.where(scale != 0, scale, 1.0)


def _call_dense(layer: layers.Dense, inputs: Tensor, training: bool | None = None) -> Tensor:
    x = ops.cast(integer_product(inputs, layer.kernel), layer.compute_dtype)
    if layer.bias is not None:
        x = ops.add(x, layer.bias)
    return x if layer.activation is None else layer.activation(x)


def _call_embedding(layer: layers.Embedding, inputs: Tensor) -> Tensor:
    return round_blocks(type(layer).call(layer, inputs))
