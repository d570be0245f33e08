"""Tensor parallelism: which axis of each weight is divided between devices.

`keras.distribution` divides weights and batches on the JAX backend; `layout_map` tells it how for
the models of this package.
"""

import keras

# Pattern of a weight's path -> the axis that is divided. The first product of each pair is divided
# by columns and the second by rows, so only its sums cross devices (Megatron-LM, section 3,
# https://arxiv.org/abs/1909.08053). Embeddings are divided by ids. All other weights are copied.
DIVIDED_AXES = {
    ".*attention/(query|key|value)/kernel": 1,
    ".*attention/(query|key|value)/bias": 0,
    ".*attention/output/kernel": 0,
    ".*feed_forward/(hidden|gate)/kernel": 1,
    ".*feed_forward/(hidden|gate)/bias": 0,
    ".*feed_forward/output/kernel": 0,
    ".*(source|target|token)_embedding/embeddings": 0,
    ".*_embedding/output_kernel": 1,
    ".*_embedding/output_bias": 0,
}


def layout_map(
    device_mesh: keras.distribution.DeviceMesh, axis: str = "model"
) -> keras.distribution.LayoutMap:
    """Returns the layout of the weights of a model of this package for `ModelParallel`.

    Each device holds some heads of every attention, some channels of every feed-forward network,
    and some rows of every embedding. The results of a training step are those of one device, up to
    rounding.

    Args:
        device_mesh: `keras.distribution.DeviceMesh`. Its size along `axis` must divide the number
            of heads, `d_ff` and the numbers of ids.
        axis: name of the axis of the mesh along which weights are divided. Defaults to "model".

    Returns:
        `keras.distribution.LayoutMap`.

    Raises:
        ValueError: the mesh has no such axis, or the backend is not JAX.

    Example:

    >>> mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"])  # doctest: +SKIP
    >>> parallel = keras.distribution.ModelParallel(  # doctest: +SKIP
    ...     layout_map=layout_map(mesh), batch_dim_name="batch"
    ... )
    >>> keras.distribution.set_distribution(parallel)  # doctest: +SKIP
    >>> model = keras_transformer.Transformer(32000, 6, 512, 8, 2048)  # doctest: +SKIP
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"Keras divides weights on the JAX backend only, but runs on {keras.backend.backend()}."
            " Set KERAS_BACKEND=jax, or use tf.distribute, where each device has all weights."
        )
    if axis not in device_mesh.axis_names:
        raise ValueError(
            f"axis must be one of the axes of the mesh, {device_mesh.axis_names}, but {axis!r} "
            "was passed."
        )
    layout = keras.distribution.LayoutMap(device_mesh)
    for pattern, divided in DIVIDED_AXES.items():
        rank = 1 if pattern.endswith("bias") else 2
        layout[pattern] = tuple(axis if i == divided else None for i in range(rank))
    return layout
