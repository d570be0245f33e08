"""Machines that are not here: what `installation.look` would find on them."""

import onnxruntime

from keras_transformer.export.runtime.installation import (
    PROVIDER_LIBRARY,
    Driver,
    Installation,
    Library,
    cuda_libraries,
)

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
GPU = "NVIDIA H100 80GB HBM3, 580.95.05, 81559 MiB"
ASKED = {"nvidia-cuda-runtime": "~=13.0", "nvidia-curand": "~=10.0", "nvidia-cudnn-cu13": "~=9.0"}
WHEELS = {
    "nvidia-cublas": "13.1.0.3",
    "nvidia-cuda-nvrtc": "13.0.88",
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cudnn-cu13": "9.14.0.64",
    "nvidia-cufft": "12.0.0.61",
    "nvidia-curand": "10.4.0.35",
}
MISSING = "{}: cannot open shared object file: No such file or directory"
NO_DRIVER = Driver(False, MISSING.format("libcuda.so.1"))
DRIVER = Driver(True, None, "580.95.05", "13.0", (GPU,))


def cpu_machine(**changes):
    """A machine without a GPU, which serves on its CPU."""
    version = onnxruntime.__version__
    found = Installation(
        {"onnxruntime": version}, version, None, (CPU,), {}, {}, {}, "", NO_DRIVER, None
    )
    return found._replace(**changes)


def cuda_machine(broken=(), **changes):
    """A machine that serves on its GPU.

    Args:
        broken: names of libraries that cannot be loaded, or dict from them to reasons.
        **changes: fields of the `Installation`.
    """
    version = onnxruntime.__version__
    libraries = cuda_libraries("13.0") | {PROVIDER_LIBRARY: Library("onnxruntime-gpu", True)}
    for name in libraries:
        libraries[name] = libraries[name]._replace(path=f"/opt/{name}")
    for name in broken:
        reason = broken[name] if isinstance(broken, dict) else MISSING.format(name)
        libraries[name] = libraries[name]._replace(error=reason, path=None)
    found = cpu_machine(
        packages={"onnxruntime-gpu": version},
        cuda="13.0",
        providers=("TensorrtExecutionProvider", CUDA, CPU),
        asked=ASKED,
        wheels=WHEELS,
        libraries=libraries,
        driver=DRIVER,
    )
    return found._replace(**changes)
