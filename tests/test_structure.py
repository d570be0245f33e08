"""Order: imports point down only, no framework at the bottom, everything public is explained."""

import ast
import pathlib
import sys
from dataclasses import dataclass, field

import pytest

import keras_transformer

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "keras_transformer"
FRAMEWORKS = {"tensorflow", "tensorflow_text", "keras", "jax", "torch"}

# A module may import modules of its own floor or below. A new module of `keras_transformer` gets
# its place here; one of `export` lives on the top floor unless serving needs it.
FLOORS = {
    "text": 0,
    "corpora": 0,
    "export.signature": 0,
    "checks": 1,
    "masks": 1,
    "losses": 1,
    "metrics": 1,
    "schedules": 1,
    "batches": 1,
    "data": 1,
    "export.artefact": 1,
    "export.session": 1,
    "export.weights": 1,
    "export.runtime": 1,
    "export.shell": 1,
    "attention": 2,
    "additive": 2,
    "positions": 2,
    "embeddings": 2,
    "feed_forward": 2,
    "blocks": 3,
    "caches": 3,
    "models": 4,
    "callbacks": 5,
    "checkpoints": 5,
    "candidates": 5,
    "decoding": 5,
    "search": 5,
    "training": 5,
    "plots": 5,
}
EXPORT_FLOOR = 6
KERAS_ONLY = ("checks", "masks", "attention", "additive", "positions", "embeddings")
KERAS_ONLY += ("feed_forward", "blocks", "caches", "models")
# Methods that Keras defines and explains, and that a layer or model only fills in.
KERAS_METHODS = {
    "build",
    "call",
    "compute_mask",
    "compute_output_shape",
    "compute_output_spec",
    "from_config",
    "get_config",
    "reset_state",
    "result",
    "update_state",
}


@dataclass
class Module:
    path: pathlib.Path
    tree: ast.Module
    at_import: set = field(default_factory=set)  # what importing the module imports
    anywhere: set = field(default_factory=set)  # that, and what its functions import


def imported_names(node):
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide the floor"
        return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


def read(path):
    module = Module(path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
    inner = set()
    for function in ast.walk(module.tree):  # what runs later
        script = isinstance(function, ast.If) and "__main__" in ast.unparse(function.test)
        if script or isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner.update(id(node) for node in ast.walk(function))
    for node in ast.walk(module.tree):
        module.anywhere |= imported_names(node)
        if id(node) not in inner:
            module.at_import |= imported_names(node)
    return module


def read_all():
    files = {path.stem: path for path in (ROOT / PACKAGE).glob("*.py")}
    files |= {f"export.{path.stem}": path for path in (ROOT / "export").glob("*.py")}
    return {name: read(path) for name, path in files.items() if not name.endswith("__init__")}


MODULES = read_all()
every_module = pytest.mark.parametrize("name", MODULES)


def floor(name):
    if name.startswith("export.") and name not in FLOORS:
        return EXPORT_FLOOR
    assert name in FLOORS, f"give {name} a floor in {pathlib.Path(__file__).name}"
    return FLOORS[name]


def own(imports):
    """The modules of this package among what is imported."""
    names = {name.removeprefix(f"{PACKAGE}.") for name in imports if name.startswith(PACKAGE)}
    return names & set(MODULES)


def outside(imports):
    return {name.partition(".")[0] for name in imports}


def test_the_modules_of_the_layout_are_read():
    assert {"masks", "attention", "blocks", "models", "text", "export.signature"} <= set(MODULES)
    assert own(MODULES["blocks"].at_import) == {"attention", "checks", "feed_forward"}


@every_module
def test_imports_point_down_only(name):
    for imported in own(MODULES[name].anywhere):
        assert floor(imported) <= floor(name), f"{name} imports {imported} of a higher floor"


def test_imports_make_no_circle():
    done = set()

    def visit(name, trail):
        assert name not in trail, " imports ".join((*trail, name))
        if name not in done:
            for imported in sorted(own(MODULES[name].at_import)):
                visit(imported, (*trail, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())
    assert done == set(MODULES)


@every_module
def test_no_private_keras_is_imported(name):
    assert not any(
        imported.startswith(("keras.src", "tensorflow.python")) and "keras" in imported
        for imported in MODULES[name].anywhere
    )


@pytest.mark.parametrize("name", [name for name in MODULES if FLOORS.get(name) == 0])
def test_floor_0_imports_no_framework(name):
    assert not outside(MODULES[name].at_import) & FRAMEWORKS


@pytest.mark.parametrize("name", KERAS_ONLY)
def test_layers_and_models_are_written_in_keras_alone(name):
    assert outside(MODULES[name].anywhere) - sys.stdlib_module_names <= {"keras", PACKAGE}


def test_serving_reaches_no_framework():
    reached, waiting = set(), ["export.runtime"]
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in reached:
            reached.add(name)
            assert not outside(MODULES[name].at_import) & FRAMEWORKS, name
            waiting += own(MODULES[name].anywhere)
    assert "export.signature" in reached


def public_definitions(tree, prefix=""):
    """(name, node) of public classes and functions, and of the public methods of the classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node, f"{node.name}.")


@every_module
def test_every_module_has_a_docstring(name):
    assert ast.get_docstring(MODULES[name].tree)


@pytest.mark.parametrize("name", KERAS_ONLY)
def test_every_public_name_of_layers_and_models_has_a_docstring(name):
    names = dict(public_definitions(MODULES[name].tree))
    assert names
    missing = [path for path, node in names.items() if not ast.get_docstring(node)]
    assert not {path for path in missing if path.rpartition(".")[2] not in KERAS_METHODS}


def test_every_exported_name_has_a_docstring():
    assert keras_transformer.__all__
    for name in keras_transformer.__all__:
        assert (getattr(keras_transformer, name).__doc__ or "").strip(), name
