"""The scripts of `examples/`, as modules."""

import importlib.util
import pathlib

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def load(name):
    """Imports `examples/NAME.py` as a module, not as a script."""
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
