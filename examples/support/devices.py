"""The devices that a run uses."""

import tensorflow as tf


def device_strategy(replicas=None):
    """Returns a `tf.distribute.MirroredStrategy` over GPUs, or else over logical CPUs.

    One device gets TensorFlow's default strategy. Logical CPUs share the cores: they show the
    results of several replicas, not their speed. They must be made before TensorFlow uses the CPU.

    Args:
        replicas: int, number of replicas. Defaults to `None`: every GPU, or one CPU.

    Returns:
        The strategy. Build and compile models within its `scope()`.

    Raises:
        ValueError: there are fewer GPUs than replicas.

    Example:

    >>> device_strategy(1).num_replicas_in_sync
    1
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    if replicas and gpus and replicas > gpus:
        raise ValueError(f"{replicas} replicas are more than the {gpus} GPUs available.")
    if not gpus and replicas and replicas > 1:
        logical = [tf.config.LogicalDeviceConfiguration()] * replicas
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, logical)
    kind, count = "GPU" if gpus else "CPU", replicas or gpus or 1
    if count == 1:
        # Under `MirroredStrategy` an epoch may end 15 s late: its iterators run the thread that
        # tunes a `tf.data.Dataset`, which can miss the signal to stop.
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(count)])
