"""Finds the packages and the driver that this machine serves with, and their faults.

`look` queries onnxruntime and NVIDIA's driver. `faults` lists the problems and how to repair them.
"""

import contextlib
import ctypes
import importlib.metadata
import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import onnxruntime

_DRIVER_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# Major versions of CUDA to Linux drivers: docs.nvidia.com/deploy/cuda-compatibility, "Minor version
# compatibility". Newer drivers also run programs for older versions.
OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver.

    Attributes:
        library: bool, whether its library was found.
        error: str, why no GPU can be used, or None.
        cuda: str, the newest CUDA version that it supports, such as "13.0", or None.
        gpus: tuple of str, the lines of `nvidia-smi`: name, driver version, memory. None without
            `nvidia-smi`.
    """

    library: bool
    error: str | None = None
    cuda: str | None = None
    gpus: tuple[str, ...] | None = None

    @property
    def version(self) -> str | None:
        """The version that `nvidia-smi` reports, such as "580.65.06", or None."""
        return self.gpus[0].split(", ")[1] if self.gpus else None


@dataclass(frozen=True)
class Installation:
    """The packages and the driver that `look` has found.

    Attributes:
        packages: dict from the packages that provide the module onnxruntime to their versions.
        onnxruntime: str, version of the module; None if the module is empty.
        driver: `Driver`.
        cuda: str, CUDA version of the build; None for a build without CUDA.
        providers: tuple of str, execution providers of this build, best first.
        cudnn: dict from the installed wheels of cuDNN to their versions.
        not_loaded: tuple of str, onnxruntime's messages about CUDA libraries that it cannot load.
        debug_info: tuple of str, lines of `onnxruntime.print_debug_info`: packages and paths.
        extensions: str, version of onnxruntime-extensions, or None.
    """

    packages: dict[str, str]
    onnxruntime: str | None
    driver: Driver
    cuda: str | None = None
    providers: tuple[str, ...] = ()
    cudnn: dict[str, str] = field(default_factory=dict)
    not_loaded: tuple[str, ...] = ()
    debug_info: tuple[str, ...] = ()
    extensions: str | None = None


def look() -> Installation:
    """Returns the `Installation` of this process."""
    names = sorted(set(importlib.metadata.packages_distributions().get("onnxruntime", ())))
    packages = {name: importlib.metadata.version(name) for name in names}
    if not hasattr(onnxruntime, "InferenceSession"):
        return Installation(packages, None, find_driver())
    cuda = getattr(onnxruntime, "cuda_version", None) or None
    installed = {
        dist.name.lower().replace("_", "-"): dist.version
        for dist in importlib.metadata.distributions()
    }
    loading = _capture_output(onnxruntime.preload_dlls) if cuda else ()
    return Installation(
        packages,
        onnxruntime.__version__,
        find_driver(),
        cuda,
        tuple(onnxruntime.get_available_providers()),
        {name: installed[name] for name in sorted(installed) if name.startswith("nvidia-cudnn-cu")},
        tuple(line for line in loading if line.startswith("Failed to load")),
        _capture_output(onnxruntime.print_debug_info),
        installed.get("onnxruntime-extensions"),
    )


def _capture_output(function: Callable[[], None]) -> tuple[str, ...]:
    """Returns the lines that a function prints, without blank lines, warnings and advice."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        function()
    lines = text.getvalue().splitlines()
    return tuple(line for line in lines if line and not line.startswith(("please", "\033")))


def find_driver(load: Callable[[str], Any] = ctypes.CDLL, smi: str = "nvidia-smi") -> Driver:
    """Returns the `Driver`, after a query of its version and GPUs."""
    gpus = _list_gpus(smi)
    try:
        library = load(_DRIVER_LIBRARY)
    except OSError as error:
        return Driver(False, str(error), gpus=gpus)
    number, words = ctypes.c_int(), ctypes.c_char_p()
    library.cuDriverGetVersion(ctypes.byref(number))
    cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    code, error = library.cuInit(0), None
    if code:
        library.cuGetErrorString(code, ctypes.byref(words))
        error = f"CUDA error {code}, {(words.value or b'unknown').decode()}"
    return Driver(True, error, cuda, gpus)


def _list_gpus(smi: str) -> tuple[str, ...] | None:
    """Returns the lines of `nvidia-smi`, one per GPU; empty if it fails, None if it is missing."""
    path = shutil.which(smi)
    if path is None:
        return None
    query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run([path, *query], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else ()


def faults(found: Installation) -> list[str]:
    """Returns the reasons why an `Installation` cannot serve on the machine's best provider."""
    if found.onnxruntime is None:
        return [
            "the module onnxruntime is empty. One of two packages that provide it was probably "
            f"removed. Remove {_list_packages(found.packages) or 'its folder'} and install one "
            "again"
        ]
    told = []
    if len(found.packages) > 1:
        told.append(
            f"{_list_packages(found.packages)} are installed side by side. They provide one "
            f"module, and the files of {'a build with' if found.cuda else 'one without'} CUDA are "
            "in use: remove both, then install one"
        )
    if found.cuda:
        return [*told, *_driver_faults(found), *_library_faults(found)]
    if found.driver.library and found.driver.error is None:
        told.append(
            f"NVIDIA's driver finds a GPU, and this onnxruntime {found.onnxruntime} is built "
            "without CUDA. Install 'keras-transformer-onnx[serve-gpu]' in a separate environment"
        )
    return told


def _driver_faults(found: Installation) -> Iterator[str]:
    driver, needed = found.driver, _major(found.cuda)
    oldest = OLDEST_DRIVERS.get(needed)
    least = f"driver {oldest} or later" if oldest else "a newer driver"
    if not driver.library:
        yield f"NVIDIA's driver is missing ({driver.error}). CUDA {found.cuda} needs {least}"
        return
    if _major(driver.cuda) < needed:
        name = f"NVIDIA's driver {driver.version}" if driver.version else "NVIDIA's driver"
        yield (
            f"{name} supports CUDA up to {driver.cuda}, and this onnxruntime is built for CUDA "
            f"{found.cuda}, which needs {least}"
        )
    elif driver.error:
        yield f"NVIDIA's driver is installed but cannot start a GPU: {driver.error}"
    if driver.gpus is None:
        yield "nvidia-smi is missing: the driver is incomplete, or a container lacks it"
    elif not driver.gpus:
        yield "nvidia-smi lists no GPU"


def _library_faults(found: Installation) -> Iterator[str]:
    for line in found.not_loaded:
        yield f"{line}. The extra 'serve-gpu' brings CUDA's libraries"
    for name, version in found.cudnn.items():
        built_for = name.removeprefix("nvidia-cudnn-cu")
        if int(built_for) != _major(found.cuda):
            yield (
                f"{name} {version} is for CUDA {built_for}, and this onnxruntime for CUDA "
                f"{found.cuda}; the two cuDNN wheels write into one folder. Train and serve in two "
                "environments"
            )


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _list_packages(packages: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in packages.items())
