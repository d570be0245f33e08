"""What this machine has installed to serve with: onnxruntime, CUDA's libraries, NVIDIA's driver.

This module looks; `faults` says what is wrong with what it has found.
"""

import contextlib
import ctypes
import importlib.metadata
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import onnxruntime

PROVIDER_LIBRARY = "libonnxruntime_providers_cuda.so"
_DRIVER_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_KERNEL_MODULE = pathlib.Path("/proc/driver/nvidia/version")


class Library(NamedTuple):
    """A shared library that the CUDA provider uses.

    Attributes:
        wheel: str, the package on PyPI that brings it.
        at_start: bool, whether the provider itself needs it; else some of its operators do.
        error: str, why it cannot be loaded, or None.
        path: str, where it was found, or None.
    """

    wheel: str
    at_start: bool
    error: str | None = None
    path: str | None = None


class Driver(NamedTuple):
    """NVIDIA's driver.

    Attributes:
        library: bool, whether its library is there.
        error: str, why no GPU can be used, or None.
        version: str such as "580.65.06", or None.
        cuda: str, the newest CUDA version that it knows, such as "13.0", or None.
        gpus: tuple of str, what `nvidia-smi` lists; None where there is no `nvidia-smi`.
    """

    library: bool
    error: str | None = None
    version: str | None = None
    cuda: str | None = None
    gpus: tuple[str, ...] | None = None


class Installation(NamedTuple):
    """What was found.

    Attributes:
        packages: dict from the packages that bring the module onnxruntime to their versions.
        onnxruntime: str, version of the module; None where it is there and holds nothing.
        cuda: str, CUDA version that it is built for; None for a build without CUDA.
        providers: tuple of str, execution providers of this build, the best first.
        asked: dict from the wheels of CUDA that onnxruntime-gpu asks for to the versions it takes.
        wheels: dict from NVIDIA's wheels that are installed to their versions.
        libraries: dict from names to `Library`; empty without CUDA, and looked for on Linux only.
        search_path: str, the variable LD_LIBRARY_PATH.
        driver: `Driver`.
        extensions: str, version of onnxruntime-extensions, or None.
    """

    packages: dict
    onnxruntime: str | None
    cuda: str | None
    providers: tuple[str, ...]
    asked: dict
    wheels: dict
    libraries: dict
    search_path: str
    driver: Driver
    extensions: str | None


def look():
    """The `Installation` of this process."""
    sound = hasattr(onnxruntime, "InferenceSession")
    cuda = (getattr(onnxruntime, "cuda_version", None) or None) if sound else None
    installed = {
        dist.name.lower().replace("_", "-"): dist.version
        for dist in importlib.metadata.distributions()
    }
    names = sorted(set(importlib.metadata.packages_distributions().get("onnxruntime", ())))
    return Installation(
        packages={name: importlib.metadata.version(name) for name in names},
        onnxruntime=onnxruntime.__version__ if sound else None,
        cuda=cuda,
        providers=tuple(onnxruntime.get_available_providers()) if sound else (),
        asked=wheels_asked_for(names),
        wheels={name: installed[name] for name in sorted(installed) if name.startswith("nvidia-")},
        libraries=load_libraries(cuda) if cuda and sys.platform == "linux" else {},
        search_path=os.environ.get("LD_LIBRARY_PATH", ""),
        driver=find_driver(),
        extensions=installed.get("onnxruntime-extensions"),
    )


def wheels_asked_for(packages, requires=importlib.metadata.requires):
    """Dict from wheels to versions, of the extras `cuda` and `cudnn` of packages."""
    pattern = re.compile(r"""(nvidia-[\w-]+)\s*([^;]*?)\s*;\s*extra == ["']cu(?:da|dnn)["']""")
    lines = [line for name in packages for line in requires(name) or ()]
    return dict(match.groups() for match in map(pattern.match, lines) if match)


def cuda_libraries(cuda):
    """Dict from names to `Library` of what the CUDA provider uses, by CUDA version, on Linux."""
    major = int(cuda.split(".")[0])
    suffix = "" if major >= 13 else f"-cu{major}"  # of NVIDIA's wheels
    return {
        f"libcudart.so.{major}": Library(f"nvidia-cuda-runtime{suffix}", True),
        f"libcublasLt.so.{major}": Library(f"nvidia-cublas{suffix}", True),
        f"libcublas.so.{major}": Library(f"nvidia-cublas{suffix}", True),
        "libcurand.so.10": Library(f"nvidia-curand{suffix}", True),
        f"libcufft.so.{major - 1}": Library(f"nvidia-cufft{suffix}", False),
        f"libnvrtc.so.{major}": Library(f"nvidia-cuda-nvrtc{suffix}", False),
        "libcudnn.so.9": Library(f"nvidia-cudnn-cu{major}", False),
    }


def load_libraries(cuda, load=ctypes.CDLL):
    """`cuda_libraries` and the provider itself, loaded as onnxruntime does; errors noted."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what is said here in order
        onnxruntime.preload_dlls()  # finds them where pip has put them
    folder = pathlib.Path(onnxruntime.__file__).parent / "capi"
    paths = {PROVIDER_LIBRARY: folder / PROVIDER_LIBRARY}
    libraries = {**cuda_libraries(cuda), PROVIDER_LIBRARY: Library("onnxruntime-gpu", True)}
    found = {}
    with contextlib.suppress(OSError):  # the provider takes symbols from it
        load(str(folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
    for name, library in libraries.items():
        try:
            load(str(paths.get(name, name)))
        except OSError as error:
            library = library._replace(error=str(error))
        found[name] = library
    places = loaded_from(found)
    return {name: library._replace(path=places.get(name)) for name, library in found.items()}


def loaded_from(names, maps=pathlib.Path("/proc/self/maps")):
    """Dict from those names of libraries that this process has loaded to their paths, on Linux.

    A file's own name can be longer: libcudart.so.13.0.96 is libcudart.so.13.
    """
    paths = re.findall(r"(/.*/(\S+))$", maps.read_text("utf-8"), re.MULTILINE)
    starts = {name: f"{name}." for name in names}
    return {
        name: path
        for path, file in dict(paths).items()
        for name, start in starts.items()
        if f"{file}.".startswith(start)
    }


def find_driver(load=ctypes.CDLL, kernel_module=_KERNEL_MODULE, smi="nvidia-smi"):
    """The `Driver`, asked for its versions and for a GPU."""
    gpus = _listed_gpus(smi)
    try:
        library = load(_DRIVER_LIBRARY)
    except OSError as error:
        return Driver(False, str(error), gpus=gpus)
    version = _kernel_module_version(kernel_module)
    number, words = ctypes.c_int(), ctypes.c_char_p()
    library.cuDriverGetVersion(ctypes.byref(number))
    cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    code = library.cuInit(0)
    if code == 0:
        return Driver(True, None, version, cuda, gpus)
    library.cuGetErrorString(code, ctypes.byref(words))
    error = f"CUDA error {code}, {(words.value or b'unknown').decode()}"
    return Driver(True, error, version, cuda, gpus)


def _kernel_module_version(path):
    """The driver's version, from the text that the kernel module shows; None where it shows none.

    Such as "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build".
    """
    if not path.exists():
        return None
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", path.read_text("utf-8"))
    return found[1] if found else None


def _listed_gpus(smi):
    """The lines of `nvidia-smi`, one a GPU; none where it fails, None where it is missing."""
    path = shutil.which(smi)
    if path is None:
        return None
    query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run([path, *query], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else ()
