"""What is found on a machine and what is said to be wrong with it; most are made up."""

import ctypes
import sys

import onnxruntime
import pytest
from support import machines
from support.machines import CPU, DRIVER, WHEELS, cpu_machine, cuda_machine

from keras_transformer.export.runtime import installation
from keras_transformer.export.runtime.faults import faults
from keras_transformer.export.runtime.installation import PROVIDER_LIBRARY, Driver

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such files")


def without(wheel):
    return {name: version for name, version in WHEELS.items() if name != wheel}


def test_nothing_is_wrong_with_sound_machines():
    assert faults(cpu_machine()) == faults(cuda_machine()) == []
    no_gpu = Driver(True, "CUDA error 100, no CUDA-capable device is detected", None, "13.0", ())
    assert faults(cpu_machine(driver=no_gpu)) == []  # nothing that serving could use


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            cuda_machine(["libcudnn.so.9"], wheels=without("nvidia-cudnn-cu13")),
            "libcudnn.so.9: cannot open shared object file: No such file or directory. Some "
            "operators need libcudnn.so.9, from nvidia-cudnn-cu13, which is not installed",
        ),
        (
            cuda_machine({"libcublas.so.13": "libcublasLt.so.13: too short"}),
            "libcublasLt.so.13: too short. The CUDA provider needs libcublas.so.13, from "
            "nvidia-cublas, of which 13.1.0.3 is installed",
        ),
        (
            cuda_machine({PROVIDER_LIBRARY: "libnew.so.1: not found"}),
            f"libnew.so.1: not found. The CUDA provider needs {PROVIDER_LIBRARY}, from "
            f"onnxruntime-gpu, of which {onnxruntime.__version__} is installed",
        ),
        (
            cuda_machine([PROVIDER_LIBRARY], driver=machines.NO_DRIVER),
            "NVIDIA's driver is missing (libcuda.so.1: cannot open shared object file: No such "
            "file or directory). CUDA 13.0 needs driver 580 or later",
        ),
        (
            cuda_machine(driver=DRIVER._replace(version="535.104.05", cuda="12.2")),
            "NVIDIA's driver 535.104.05 knows CUDA up to 12.2, and this onnxruntime is built for "
            "CUDA 13.0, which needs driver 580 or later",
        ),
        (
            cuda_machine(cuda="14.1", driver=DRIVER._replace(version=None), wheels={}),
            "NVIDIA's driver knows CUDA up to 13.0, and this onnxruntime is built for CUDA 14.1, "
            "which needs a newer driver",
        ),
        (
            cuda_machine(driver=DRIVER._replace(error="CUDA error 999, unknown error")),
            "NVIDIA's driver is there and starts no GPU: CUDA error 999, unknown error",
        ),
        (
            cuda_machine(driver=DRIVER._replace(gpus=None)),
            "nvidia-smi is missing: the driver is installed in part, or a container lacks it",
        ),
        (cuda_machine(driver=DRIVER._replace(gpus=())), "nvidia-smi lists no GPU"),
        (
            cpu_machine(driver=DRIVER, onnxruntime="1.31.1"),
            "NVIDIA's driver finds a GPU, and this onnxruntime 1.31.1 is built without CUDA. "
            "Install 'keras-transformer-onnx[serve-gpu]' in an environment of its own",
        ),
        (
            cpu_machine(packages={"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.30.0"}),
            "onnxruntime 1.31.1 and onnxruntime-gpu 1.30.0 are installed side by side. They are "
            "one module, of which the files of one without CUDA are in use: remove both, then "
            "install one",
        ),
        (
            cuda_machine(packages={"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.30.0"}),
            "onnxruntime 1.31.1 and onnxruntime-gpu 1.30.0 are installed side by side. They are "
            "one module, of which the files of a build with CUDA are in use: remove both, then "
            "install one",
        ),
        (
            cpu_machine(packages={"onnxruntime-gpu": "1.31.1"}, onnxruntime=None),
            "the module onnxruntime is there and holds nothing, as after one of two packages that "
            "bring it was removed. Remove onnxruntime-gpu 1.31.1 and install one again",
        ),
        (
            cpu_machine(packages={}, onnxruntime=None),
            "the module onnxruntime is there and holds nothing, as after one of two packages that "
            "bring it was removed. Remove its folder and install one again",
        ),
        (
            cuda_machine(wheels={**WHEELS, "nvidia-cudnn-cu12": "9.8.0.87"}),
            "nvidia-cudnn-cu12 9.8.0.87 is for CUDA 12, and this onnxruntime for CUDA 13.0; the "
            "two cuDNN wheels write into one folder. Train and serve in two environments",
        ),
        (
            cuda_machine(wheels={**WHEELS, "nvidia-curand": "11.0.1"}),
            "nvidia-curand 11.0.1 is installed, and this onnxruntime asks for nvidia-curand~=10.0",
        ),
    ],
)
def test_a_fault_is_told_with_its_remedy_and_nothing_else_is(found, told):
    assert faults(found) == [told]


def test_every_missing_library_is_told_by_name_and_their_consequence_is_not():
    names = ["libcublasLt.so.13", "libcudart.so.13", "libcufft.so.12", PROVIDER_LIBRARY]
    told = faults(cuda_machine(names))
    assert len(told) == 3
    assert all(any(fault.startswith(f"{name}: ") for fault in told) for name in names[:3])


def test_libraries_and_wheels_go_by_the_version_of_cuda():
    twelve, thirteen = installation.cuda_libraries("12.8"), installation.cuda_libraries("13.0")
    assert twelve["libcudart.so.12"].wheel == "nvidia-cuda-runtime-cu12"
    assert twelve["libcufft.so.11"].wheel == "nvidia-cufft-cu12"
    assert thirteen["libcufft.so.12"].wheel == "nvidia-cufft"
    wheels = [libraries["libcudnn.so.9"].wheel for libraries in (twelve, thirteen)]
    assert wheels == ["nvidia-cudnn-cu12", "nvidia-cudnn-cu13"]


def test_the_wheels_that_a_package_asks_for_are_read_from_its_requirements():
    lines = {
        "onnxruntime-gpu": [
            "numpy>=1.21.6",
            'nvidia-cufft~=12.0; extra == "cuda"',
            "nvidia-cudnn-cu13 ~=9.0 ; extra == 'cudnn'",
            'nvidia-curand; extra == "cuda"',
            'sympy; extra == "symbolic"',
        ],
        "onnxruntime": None,
    }
    assert installation.wheels_asked_for(lines, lines.get) == {
        "nvidia-cufft": "~=12.0",
        "nvidia-cudnn-cu13": "~=9.0",
        "nvidia-curand": "",
    }


def test_this_machine_is_looked_at():
    found = installation.look()
    assert found.onnxruntime == onnxruntime.__version__
    assert found.onnxruntime in found.packages.values()
    assert CPU in found.providers and found.extensions
    assert bool(found.libraries) == (found.cuda is not None)


def test_a_module_that_holds_nothing_is_found(monkeypatch):
    monkeypatch.setattr(installation, "onnxruntime", object())
    found = installation.look()
    assert (found.onnxruntime, found.cuda, found.providers) == (None, None, ())


@on_linux
def test_libraries_are_loaded_and_the_loaders_words_noted():
    tried = []

    def load(name, mode=0):
        tried.append(name)
        if "cudnn" in name or "providers_shared" in name:
            raise OSError(f"{name}: no such file")

    found = installation.load_libraries("13.0", load)
    failed = {name: library.error for name, library in found.items() if library.error}
    assert failed == {"libcudnn.so.9": "libcudnn.so.9: no such file"}
    assert tried[0].endswith("libonnxruntime_providers_shared.so")  # before what needs it
    assert tried[-1].endswith(f"capi/{PROVIDER_LIBRARY}") and list(found)[-1] == PROVIDER_LIBRARY


def test_places_of_loaded_libraries_are_read_from_the_memory_map(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f36-7f40 r-xp 0 fe:00 3  /opt/cuda 13/libcudart.so.13.0.96\n"
        "7f41-7f42 r-xp 0 fe:00 3  /lib/libcublasLt.so.13\n7f43-7f44 rw-p 0 00:00 0  [stack]\n"
    )
    names = ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"]
    assert installation.loaded_from(names, maps) == {
        "libcudart.so.13": "/opt/cuda 13/libcudart.so.13.0.96",
        "libcublasLt.so.13": "/lib/libcublasLt.so.13",
    }


class FakeDriver:
    """The functions of libcuda.so.1 that are asked."""

    def __init__(self, version, code):
        self._version, self._code = version, code

    def cuDriverGetVersion(self, pointer):
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = self._version

    def cuInit(self, flags):
        return self._code

    def cuGetErrorString(self, code, pointer):
        if code == 100:
            words = ctypes.c_char_p(b"no CUDA-capable device is detected")
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_char_p))[0] = words


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  R", "580.65.06"),
        ("something else", None),
    ],
)
def test_the_driver_is_asked_for_its_version(tmp_path, text, version):
    module = tmp_path / "version"
    module.write_text(text)
    found = installation.find_driver(lambda name: FakeDriver(12020, 0), module, "no-such-command")
    assert found == Driver(True, None, version, "12.2", None)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (100, "CUDA error 100, no CUDA-capable device is detected"),
        (12345, "CUDA error 12345, unknown"),
    ],
)
def test_a_driver_that_starts_no_gpu_is_found(tmp_path, code, error):
    found = installation.find_driver(lambda name: FakeDriver(13010, code), tmp_path / "none", "no")
    assert found == Driver(True, error, None, "13.1", None)


@on_linux
@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        (f"#!/bin/sh\necho '{machines.GPU}'\n", (machines.GPU,)),
        ("#!/bin/sh\necho 'has failed'\nexit 9\n", ()),
        ("not a program", ()),
    ],
)
def test_gpus_are_listed_by_nvidia_smi(tmp_path, script, gpus):
    def load(name):
        raise OSError(f"{name}: missing")

    smi = tmp_path / "nvidia-smi"
    smi.write_text(script)
    smi.chmod(0o755)
    found = installation.find_driver(load, smi=str(smi))
    assert found.gpus == gpus and not found.library and found.error.endswith(": missing")
