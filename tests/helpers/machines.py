"""Simulated machines: results of `installation.look` on them."""

from dataclasses import replace

import onnxruntime

from keras_transformer.export.runtime.installation import Driver, Installation

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
GPU = "NVIDIA H100 80GB HBM3, 580.95.05, 81559 MiB"
MISSING = "{0}: cannot open shared object file: No such file or directory"
NO_DRIVER = Driver(False, MISSING.format("libcuda.so.1"))
DRIVER = Driver(True, None, "13.0", (GPU,))


def cpu_machine(**changes):
    """Returns a machine without a GPU, which serves on its CPU."""
    version = onnxruntime.__version__
    found = Installation({"onnxruntime": version}, version, NO_DRIVER, providers=(CPU,))
    return replace(found, **changes)


def cuda_machine(broken=(), **changes):
    """Returns a machine that serves on its GPU.

    Args:
        broken: names of libraries that cannot be loaded.
        **changes: fields of the `Installation`.
    """
    version = onnxruntime.__version__
    found = cpu_machine(
        packages={"onnxruntime-gpu": version},
        cuda="13.0",
        providers=("TensorrtExecutionProvider", CUDA, CPU),
        cudnn={"nvidia-cudnn-cu13": "9.14.0.64"},
        not_loaded=tuple(f"Failed to load {name}: {MISSING.format(name)}" for name in broken),
        debug_info=("nvidia-cudnn-cu13==9.14.0.64 at /opt/cudnn",),
        driver=DRIVER,
    )
    return replace(found, **changes)
