"""Devices and precisions of the frameworks, for `training.py` and `gpu.py`."""

import importlib.util
import os
import sys

import bench

BACKENDS = ("tensorflow", "jax", "torch")
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")


def environment(device, threads, backend=None, packages=None):
    """Returns environment variables for a process on "gpu" or "cpu" with `threads` threads.

    Args:
        packages: folder of unpacked wheels that the process imports first.
    """
    found = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # Waiting engines keep their weights in memory, so none may take all of it.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    found |= dict.fromkeys(names, str(threads))
    if device == "cpu":
        found |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    if backend:
        found["KERAS_BACKEND"] = backend
    if packages:
        paths = [str(packages), os.environ.get("PYTHONPATH")]
        found["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return found


def call(args, function, backend=None, **task):
    """Runs a part of `gpu.py` in a process; returns its facts."""
    task |= dict(device=args.device, threads=args.threads, seed=args.seed)
    variables = environment(args.device, args.threads, backend, args.packages)
    return bench.call(function, task, variables)


def use_checkout():
    """Makes `keras_transformer` importable from this checkout where it is not installed."""
    if importlib.util.find_spec("keras_transformer") is None:
        sys.path.insert(0, str(bench.ROOT))
        import keras_transformer

        keras_transformer.__path__.append(str(bench.ROOT))  # contains `export`


# The functions below depend on the framework: `engine` is one of `BACKENDS`.


def set_precision(engine, precision):
    """Sets exact or TF32 products of float32 numbers; the dtype alone sets lower precisions."""
    allowed = precision != "float32"
    if engine == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(allowed)
    elif engine == "jax":
        import jax

        names = {"float32": "float32", "tf32": "tensorfloat32"}
        jax.config.update("jax_default_matmul_precision", names.get(precision))
    else:
        import torch

        torch.set_float32_matmul_precision("high" if allowed else "highest")


def dtype_policy(precision):
    """Returns the name of Keras' dtype policy."""
    low = precision in ("bfloat16", "float16")
    return f"mixed_{precision}" if low else "float32"


def gpus(engine):
    """Returns the names of the GPUs that a framework can use."""
    if engine == "tensorflow":
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
        details = [tf.config.experimental.get_device_details(gpu) for gpu in found]
        return [each.get("device_name", "GPU") for each in details]
    if engine == "jax":
        import jax

        return [each.device_kind for each in jax.devices() if each.platform in ("gpu", "cuda")]
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def on_gpu(tensor):
    """Returns whether a tensor of any framework is on a GPU."""
    if hasattr(tensor, "is_cuda"):
        return tensor.is_cuda
    device = tensor.device  # TensorFlow: a string; JAX: an object
    return "GPU" in device if isinstance(device, str) else device.platform in ("gpu", "cuda")


def gpu_memory(engine):
    """Returns the peak memory of the framework on the first GPU in bytes."""
    if engine == "tensorflow":
        import tensorflow as tf

        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    if engine == "jax":
        import jax

        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    import torch

    return torch.cuda.max_memory_allocated()
