"""Detection of an installation and its faults. Most machines are simulated."""

import ctypes
import sys
from dataclasses import replace

import onnxruntime
import pytest
from helpers import machines
from helpers.machines import CPU, DRIVER, cpu_machine, cuda_machine

from keras_transformer.export.runtime import installation
from keras_transformer.export.runtime.installation import Driver, faults


def test_nothing_is_wrong_with_sound_machines():
    assert faults(cpu_machine()) == faults(cuda_machine()) == []
    no_gpu = Driver(True, "CUDA error 100, no CUDA-capable device is detected", "13.0", ())
    assert faults(cpu_machine(driver=no_gpu)) == []  # without a GPU, serving needs no CUDA


BOTH = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.30.0"}
SIDE_BY_SIDE = (
    "onnxruntime 1.31.1 and onnxruntime-gpu 1.30.0 are installed side by side. They provide one "
    "module, and the files of {} CUDA are in use: remove both, then install one"
)
EMPTY = (
    "the module onnxruntime is empty. One of two packages that provide it was probably removed. "
    "Remove {} and install one again"
)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            cuda_machine(["libcublas.so.13"]),
            "Failed to load libcublas.so.13: libcublas.so.13: cannot open shared object file: No "
            "such file or directory. The extra 'serve-gpu' brings CUDA's libraries",
        ),
        (
            cuda_machine(driver=machines.NO_DRIVER),
            "NVIDIA's driver is missing (libcuda.so.1: cannot open shared object file: No such "
            "file or directory). CUDA 13.0 needs driver 580 or later",
        ),
        (
            cuda_machine(driver=replace(DRIVER, gpus=("GPU, 535.104.05, 1 MiB",), cuda="12.2")),
            "NVIDIA's driver 535.104.05 supports CUDA up to 12.2, and this onnxruntime is built "
            "for CUDA 13.0, which needs driver 580 or later",
        ),
        (
            cuda_machine(cuda="14.1", cudnn={}),
            "NVIDIA's driver 580.95.05 supports CUDA up to 13.0, and this onnxruntime is built for "
            "CUDA 14.1, which needs a newer driver",
        ),
        (
            cuda_machine(driver=replace(DRIVER, error="CUDA error 999, unknown error")),
            "NVIDIA's driver is installed but cannot start a GPU: CUDA error 999, unknown error",
        ),
        (
            cuda_machine(driver=replace(DRIVER, gpus=None)),
            "nvidia-smi is missing: the driver is incomplete, or a container lacks it",
        ),
        (cuda_machine(driver=replace(DRIVER, gpus=())), "nvidia-smi lists no GPU"),
        (
            cpu_machine(driver=DRIVER, onnxruntime="1.31.1"),
            "NVIDIA's driver finds a GPU, and this onnxruntime 1.31.1 is built without CUDA. "
            "Install 'keras-transformer-onnx[serve-gpu]' in a separate environment",
        ),
        (cpu_machine(packages=BOTH), SIDE_BY_SIDE.format("one without")),
        (cuda_machine(packages=BOTH), SIDE_BY_SIDE.format("a build with")),
        (
            cpu_machine(packages={"onnxruntime-gpu": "1.31.1"}, onnxruntime=None),
            EMPTY.format("onnxruntime-gpu 1.31.1"),
        ),
        (cpu_machine(packages={}, onnxruntime=None), EMPTY.format("its folder")),
        (
            cuda_machine(cudnn={"nvidia-cudnn-cu12": "9.8.0.87", "nvidia-cudnn-cu13": "9.14"}),
            "nvidia-cudnn-cu12 9.8.0.87 is for CUDA 12, and this onnxruntime for CUDA 13.0; the "
            "two cuDNN wheels write into one folder. Train and serve in two environments",
        ),
    ],
)
def test_faults_name_the_problem_and_its_remedy(found, told):
    assert faults(found) == [told]


def test_look_describes_this_machine(monkeypatch):
    found = installation.look()
    assert found.onnxruntime == onnxruntime.__version__
    assert found.onnxruntime in found.packages.values()
    assert CPU in found.providers and found.extensions
    assert any(line.startswith("onnxruntime==") for line in found.debug_info)
    assert not any(line.startswith("please") for line in found.debug_info)
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    told = "\n\033[33mWARNING: old\nFailed to load libcurand.so.10: missing\nPlease follow"
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print(told), raising=False)
    found = installation.look()
    assert found.not_loaded == ("Failed to load libcurand.so.10: missing",)
    assert found.cuda == "13.0"


def test_look_detects_an_empty_module(monkeypatch):
    monkeypatch.setattr(installation, "onnxruntime", object())
    found = installation.look()
    assert (found.onnxruntime, found.cuda, found.providers) == (None, None, ())


class FakeDriver:
    """Fakes the functions of libcuda.so.1 that are called."""

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
    ("version", "code", "cuda", "error"),
    [
        (12020, 0, "12.2", None),
        (13010, 100, "13.1", "CUDA error 100, no CUDA-capable device is detected"),
        (13010, 12345, "13.1", "CUDA error 12345, unknown"),
    ],
)
def test_the_driver_is_asked_for_its_version_and_a_gpu(version, code, cuda, error):
    found = installation.find_driver(lambda name: FakeDriver(version, code), "no-such-command")
    assert found == Driver(True, error, cuda, None) and found.version is None


@pytest.mark.skipif(sys.platform != "linux", reason="starts a shell script")
@pytest.mark.parametrize(
    ("script", "gpus", "version"),
    [
        (f"#!/bin/sh\necho '{machines.GPU}'\n", (machines.GPU,), "580.95.05"),
        ("#!/bin/sh\necho 'has failed'\nexit 9\n", (), None),
        ("not a program", (), None),
    ],
)
def test_gpus_are_listed_by_nvidia_smi(tmp_path, script, gpus, version):
    def load(name):
        raise OSError(f"{name}: missing")

    smi = tmp_path / "nvidia-smi"
    smi.write_text(script)
    smi.chmod(0o755)
    found = installation.find_driver(load, smi=str(smi))
    assert (found.gpus, found.version, found.library) == (gpus, version, False)
    assert found.error.endswith(": missing")
