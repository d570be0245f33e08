"""Refusals that several layers share: what was passed, what was expected, how to mend it."""

import numbers

import keras


def check_positive(**sizes):
    """Refuses a size that is no integer of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral):
            raise TypeError(f"{name} must be one integer, but {size!r} was passed.")
        if size < 1:
            raise ValueError(f"{name} must be at least 1, but {size} was passed.")


def check_ranks(**shapes):
    """Refuses inputs that are not (batch, length, features)."""
    for name, shape in shapes.items():
        if len(shape) != 3:
            raise ValueError(
                f"{name} must have shape (batch, length, features), but {tuple(shape)} "
                "was passed. Add or merge axes first."
            )


def check_heads(d_model, num_heads, key_dim):
    """Refuses a model size that gives heads of no whole size, unless `key_dim` is set."""
    if key_dim is None and (num_heads < 1 or d_model % num_heads):
        raise ValueError(
            f"d_model={d_model} does not divide into num_heads={num_heads} heads. "
            "Change one of them, or set key_dim."
        )


def check_same_length(key, value):
    """Refuses keys and values (B, S, ...) that do not belong together, where S is known."""
    lengths = key.shape[1], value.shape[1]
    if None not in lengths and lengths[0] != lengths[1]:
        raise ValueError(
            f"key and value must have the same length, but {lengths[0]} and {lengths[1]} positions "
            "were passed. Each value belongs to the key at its position."
        )


def check_ids(ids, otherwise):
    """Refuses token ids that are not integers; `otherwise` says what else could have been meant."""
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "int" in dtype:
        return
    message = f"Token ids must be integers, but their dtype is {dtype}. Cast them, or {otherwise}."
    if "float" in dtype and keras.backend.backend() == "tensorflow":
        message += (
            " If this is `fit` on several replicas of a tf.distribute strategy and your ids are "
            "integers: Keras has averaged them over the replicas. Call "
            "keras_transformer.training.prepare(model) after model.compile."
        )
    raise TypeError(message)


def check_id_inputs(model, inputs):
    """Refuses ids that are not integers in a model's inputs: Keras would cut floats to int32."""
    if not isinstance(inputs, dict):
        names = [tensor.name for tensor in model.inputs]
        inputs = dict(zip(names, keras.tree.flatten(inputs), strict=False))
    for name in {"source_ids", "target_ids", "segment_ids"}.intersection(inputs):
        check_ids(inputs[name], "feed vectors to the blocks themselves")


def check_encoder(encoder, target_vocab_size):
    """Refuses an encoder of the caller's that is no functional model with output (B, S, D)."""
    if encoder is None:
        return
    if not getattr(encoder, "inputs", None):
        raise TypeError(
            "encoder must be a functional Keras model, whose inputs are known, but "
            f"{type(encoder).__name__} was passed. Make one with keras.Model(inputs, outputs)."
        )
    shape = getattr(encoder.output, "shape", ())
    if len(shape) != 3 or shape[-1] is None:
        raise ValueError(
            "encoder must have one output of shape (batch, length, features), but its output is "
            f"{encoder.output}. Reshape or pick it inside the model."
        )
    if "target_ids" in [tensor.name for tensor in encoder.inputs]:
        raise ValueError("An input of the encoder is called 'target_ids', as the decoder's is.")
    if target_vocab_size is not None:
        raise ValueError(
            "With encoder=, vocab_size is that of the target: leave target_vocab_size out."
        )


def check_known(taker, arguments, *known):
    """Refuses keyword arguments that are none of the known ones."""
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise TypeError(
            f"{type(taker).__name__} has no arguments {unknown}. Look for a misspelt name: "
            f"help({type(taker).__name__}) lists them."
        )
