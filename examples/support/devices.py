"""The devices that a run uses."""

import tensorflow as tf


def mirrored_strategy(replicas=None):
    """`tf.distribute.MirroredStrategy` over GPUs, or over logical CPUs where there is no GPU.

    Logical CPUs share the cores: they show what several replicas do, not how fast. They can only
    be made before TensorFlow has used the CPU.

    Args:
        replicas: int, how many. Defaults to `None`: every GPU, or one CPU.

    Returns:
        The strategy; models are built and compiled within its `scope()`.

    Raises:
        ValueError: more replicas than there are GPUs.

    Example:

    >>> mirrored_strategy(1).num_replicas_in_sync
    1
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    if replicas and gpus and replicas > gpus:
        raise ValueError(f"{replicas} replicas are more than the {gpus} GPUs there are.")
    if not gpus and replicas and replicas > 1:
        logical = [tf.config.LogicalDeviceConfiguration()] * replicas
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, logical)
    kind = "GPU" if gpus else "CPU"
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(replicas or gpus or 1)])
