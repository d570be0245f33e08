"""Prove an installed wheel in a clean environment. Usage: check_installed.py EXTRAS

`tensorflow,export` must import every module. `serve` must import the runtime where no framework is
installed, stay small, and name the missing extra when asked for a layer.
"""

import importlib.util
import pathlib
import pkgutil
import sys
import sysconfig

SERVE_LIMIT = 250  # megabytes on disk, all that `serve` installs


def check_every_module_imports() -> None:
    import keras_transformer

    modules = pkgutil.walk_packages(keras_transformer.__path__, "keras_transformer.")
    names = [module.name for module in modules if not module.name.endswith("__main__")]
    for name in names:
        importlib.import_module(name)
    for package in (keras_transformer, importlib.import_module("keras_transformer.export")):
        for name in package.__all__:
            getattr(package, name)
    print(f"imported: {' '.join(names)}")


def check_serving_without_framework() -> None:
    for framework in ("tensorflow", "keras", "jax", "torch"):
        if importlib.util.find_spec(framework) is not None:
            sys.exit(f"{framework} is installed, so this environment proves nothing")
    importlib.import_module("keras_transformer.export.runtime")

    import keras_transformer

    try:
        keras_transformer.MultiHeadAttention  # noqa: B018
    except ImportError as error:
        if "keras-transformer-onnx[tensorflow]" not in str(error):
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
    if sys.argv[1:] == ["tensorflow,export"]:
        check_every_module_imports()
    elif sys.argv[1:] == ["serve"]:
        check_serving_without_framework()
    else:
        sys.exit(__doc__)
