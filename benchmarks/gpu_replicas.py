"""One update on two replicas against the same update on one.

The rows hold different numbers of tokens, so a mean of the replicas' means would differ from
the mean over all tokens. Plain SGD shows a wrong scale of the gradient, which Adam would hide.
"""

import time

import numpy as np
from bench import Missing, WorkerError
from devices import set_precision, use_checkout


def replicas(task):
    """Makes one update on two replicas and on one, with the same weights and batch.

    Returns:
        Dict with the largest relative difference of a weight's update, and its limit. Weights
        whose update is below their rounding error are not compared.
    """
    use_checkout()
    import keras
    import tensorflow as tf

    import keras_transformer as kt

    set_precision("tensorflow", "float32")
    devices, reduction = two_devices(tf, task["device"])
    generator = np.random.default_rng(task["seed"])
    source, target, labels = generator.integers(4, task["vocabulary"], (3, 6, 7)).astype("int32")
    for row in range(len(source)):  # replicas hold different numbers of tokens
        source[row, 2 + row :] = target[row, 1 + row :] = labels[row, 1 + row :] = 0

    def updated(strategy):
        keras.utils.set_random_seed(task["seed"])
        with strategy.scope():
            model = kt.Transformer(task["vocabulary"], **task["shape"], dropout=0.0)
            model.compile(
                keras.optimizers.SGD(0.5, global_clipnorm=1.0),
                loss=kt.SequenceCrossentropy(label_smoothing=0.1),
                jit_compile=False,
            )
        before = [np.array(v) for v in model.trainable_variables]
        x = {"source_ids": source, "target_ids": target}
        model.fit(x, labels, batch_size=len(source), epochs=1, shuffle=False, verbose=0)
        after = [np.array(v) for v in model.trainable_variables]
        return before, after

    start = time.perf_counter()
    before, both = updated(tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction))
    seconds = time.perf_counter() - start
    _, one = updated(tf.distribute.OneDeviceStrategy(devices[0]))
    differences = [
        np.linalg.norm(a - b) / max(np.linalg.norm(b - c), 1e-30)
        for a, b, c in zip(both, one, before, strict=True)
        if np.linalg.norm(b - c) > 1e-6 * np.linalg.norm(c)
    ]
    moved = len(differences) / len(one)
    if moved < 0.5:
        raise WorkerError(f"only {moved:.0%} of the weights were updated: nothing is compared")
    # Rounding of sums of a few hundred float32 numbers in another order.
    limit = 1e-4
    difference = float(max(differences))
    wrong = [] if difference <= limit else ["difference"]
    found = {"devices": devices, "difference": difference, "limit": limit, "wrong": wrong}
    return found | {"seconds_with_tracing": seconds}


def two_devices(tf, device):
    """Returns the names of two devices, and the reduction of gradients over them."""
    kind = device.upper()
    physical = tf.config.list_physical_devices(kind)
    if not physical:
        raise Missing(f"tensorflow sees no {kind}")
    names = [f"{kind}:0", f"{kind}:1"]
    if len(physical) > 1:
        return names, None
    memory = 4096 if device == "gpu" else None  # MB of each
    logical = [tf.config.LogicalDeviceConfiguration(memory_limit=memory) for _ in names]
    tf.config.set_logical_device_configuration(physical[0], logical)
    # NCCL refuses two replicas on one GPU.
    return names, tf.distribute.ReductionToOneDevice()
