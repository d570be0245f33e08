"""Proves an installed wheel in a clean environment. Usage: check_installed.py EXTRAS

`train,export` must import every module that needs no other extra. `service`, with Ray, must import
its modules, and `serve` the runtime, where no framework is installed. `serve` must stay small,
and must name the missing extra when a layer is used.
"""

import importlib.util
import pathlib
import pkgutil
import sys
import sysconfig

SERVE_LIMIT = 250  # megabytes on disk, all that `serve` installs


FRAMEWORKS = ("tensorflow", "keras", "jax", "torch")
SERVICE = "keras_transformer.export.serving"  # it needs the extra `service`
LITERT = "keras_transformer.export.runtime.litert_session"  # it needs the extra `litert`


def modules(package):
    """Names of all modules below a package; none of them runs a command."""
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def check_every_module_imports() -> None:
    import keras_transformer

    others = (f"{SERVICE}.", LITERT)
    names = [name for name in modules(keras_transformer) if not name.startswith(others)]
    for name in names:
        importlib.import_module(name)
    for package in (keras_transformer, importlib.import_module("keras_transformer.export")):
        for name in package.__all__:
            getattr(package, name)
    print(f"imported: {' '.join(names)}")


def check_no_framework() -> None:
    for framework in FRAMEWORKS:
        if importlib.util.find_spec(framework) is not None:
            sys.exit(f"{framework} is installed, so this environment proves nothing")


def check_the_service_imports() -> None:
    check_no_framework()
    for package in (SERVICE, "keras_transformer.export.archive"):
        names = modules(importlib.import_module(package))
        for name in names:
            importlib.import_module(name)
        print(f"imported: {package} {' '.join(names)}")


def check_serving_without_framework() -> None:
    check_no_framework()
    importlib.import_module("keras_transformer.export.runtime")

    import keras_transformer

    try:
        keras_transformer.MultiHeadAttention  # noqa: B018
    except ImportError as error:
        if "keras-transformer-onnx[train]" not in str(error):
            sys.exit(f"the error does not name the extra: {error}")
    else:
        sys.exit("a layer was had without Keras")

    site = pathlib.Path(sysconfig.get_path("purelib"))
    files = (path for path in site.rglob("*") if path.is_file())
    brought_by_venv = {"pip", "setuptools", "_distutils_hack"}
    size = sum(
        path.stat().st_size
        for path in files
        if path.relative_to(site).parts[0].partition("-")[0] not in brought_by_venv
    )
    print(f"installed: {size / 1e6:.0f} MB")
    if size > SERVE_LIMIT * 1e6:
        sys.exit(f"more than {SERVE_LIMIT} MB")


if __name__ == "__main__":
    if sys.argv[1:] == ["train,export"]:
        check_every_module_imports()
    elif sys.argv[1:] == ["service"]:
        check_the_service_imports()
    elif sys.argv[1:] == ["serve"]:
        check_serving_without_framework()
    else:
        sys.exit(__doc__)
