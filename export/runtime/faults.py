"""What is wrong with an `Installation`, in sentences that say how to mend it."""

import re

from keras_transformer.export.runtime.installation import PROVIDER_LIBRARY

# Of the major versions of CUDA, on Linux: docs.nvidia.com/deploy/cuda-compatibility, "Minor version
# compatibility". Newer drivers run programs of older versions too.
OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}


def faults(found):
    """What keeps an `Installation` from serving on the best that the machine has, a list of str."""
    if found.onnxruntime is None:
        return [
            "the module onnxruntime is there and holds nothing, as after one of two packages that "
            f"bring it was removed. Remove {_listed(found.packages) or 'its folder'} and install "
            "one again"
        ]
    return [
        *_doubled_packages(found),
        *(_cuda_faults(found) if found.cuda else _unused_gpu(found)),
    ]


def _doubled_packages(found):
    if len(found.packages) > 1:
        yield (
            f"{_listed(found.packages)} are installed side by side. They are one module, of which "
            f"the files of {'a build with' if found.cuda else 'one without'} CUDA are in use: "
            "remove both, then install one"
        )


def _unused_gpu(found):
    if found.driver.library and found.driver.error is None:
        yield (
            f"NVIDIA's driver finds a GPU, and this onnxruntime {found.onnxruntime} is built "
            "without CUDA. Install 'keras-transformer-onnx[serve-gpu]' in an environment of its own"
        )


def _cuda_faults(found):
    yield from _driver_faults(found)
    yield from _library_faults(found)
    yield from _wheel_faults(found)


def _driver_faults(found):
    driver, needed = found.driver, _major(found.cuda)
    oldest = OLDEST_DRIVERS.get(needed)
    least = f"driver {oldest} or later" if oldest else "a newer driver"
    if not driver.library:
        yield f"NVIDIA's driver is missing ({driver.error}). CUDA {found.cuda} needs {least}"
    elif _major(driver.cuda) < needed:
        yield (
            f"NVIDIA's driver {driver.version or ''} knows CUDA up to {driver.cuda}, and this "
            f"onnxruntime is built for CUDA {found.cuda}, which needs {least}".replace("  ", " ")
        )
    elif driver.error:
        yield f"NVIDIA's driver is there and starts no GPU: {driver.error}"
    if driver.library and driver.gpus is None:
        yield "nvidia-smi is missing: the driver is installed in part, or a container lacks it"
    elif driver.library and not driver.gpus:
        yield "nvidia-smi lists no GPU"


def _library_faults(found):
    failed = {name: library for name, library in found.libraries.items() if library.error}
    others = any(library.at_start for name, library in failed.items() if name != PROVIDER_LIBRARY)
    if others or not found.driver.library:
        failed.pop(PROVIDER_LIBRARY, None)  # for want of these
    for name, library in failed.items():
        user = "The CUDA provider needs" if library.at_start else "Some operators need"
        version = found.wheels.get(library.wheel) or found.packages.get(library.wheel)
        state = f"of which {version} is installed" if version else "which is not installed"
        yield f"{library.error}. {user} {name}, from {library.wheel}, {state}"


def _wheel_faults(found):
    for name, version in found.wheels.items():
        asked = found.asked.get(name, "")
        pinned = re.match(r"~=\s*(\d+)", asked)
        if pinned and _major(version) != int(pinned[1]):
            yield f"{name} {version} is installed, and this onnxruntime asks for {name}{asked}"
        built_for = re.fullmatch(r"nvidia-cudnn-cu(\d+)", name)
        if built_for and int(built_for[1]) != _major(found.cuda):
            yield (
                f"{name} {version} is for CUDA {built_for[1]}, and this onnxruntime for CUDA "
                f"{found.cuda}; the two cuDNN wheels write into one folder. Train and serve in two "
                "environments"
            )


def _major(version):
    return int(version.split(".")[0])


def _listed(packages):
    return " and ".join(f"{name} {version}" for name, version in packages.items())
