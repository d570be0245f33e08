"""Order: imports point down only, no framework at the bottom, everything public is explained.

`python tests/package/test_structure.py` prints the floors and what each module imports.
"""

import ast
import pathlib
import sys
from dataclasses import dataclass, field

import pytest

import keras_transformer

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = "keras_transformer"
FRAMEWORKS = {"tensorflow", "tensorflow_text", "keras", "jax", "torch"}

# From the bottom up. A module may import what stands on its own floor or below; a name stands for
# a module or for a whole folder, and the longest that fits counts.
FLOORS = (
    {"special_ids"},
    {"data.tokenizer", "data.corpora", "data.batches"},
    {"export.runtime"},
    {
        "layers",
        "data",
        "training.distribution",
        "training.gradients",
        "training.losses",
        "training.metrics",
        "training.replicas",
        "training.schedules",
        "training.steps",
    },
    {"models", "search"},
    {"training", "plots"},
    {"export.staging", "export.verify", "export.probe", "export.graph"},
    {"export"},
)
# What needs no framework at all, and what needs Keras only.
NO_FRAMEWORK = {name for floor in FLOORS[:3] for name in floor}
KERAS_ONLY = ("layers", "models")
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
    """Every module by its name below the package; a folder's own page by the folder's name."""
    files = {}
    for root, prefix in ((ROOT / PACKAGE, ()), (ROOT / "export", ("export",))):
        for path in sorted(root.rglob("*.py")):
            parts = (*prefix, *path.relative_to(root).with_suffix("").parts)
            files[".".join(parts).removesuffix(".__init__")] = path
    return {name: read(path) for name, path in files.items() if name not in ("__init__", "export")}


MODULES = read_all()
every_module = pytest.mark.parametrize("name", MODULES)


def within(name, folders):
    """The longest of `folders` (or modules) that holds the module, or None."""
    holding = [folder for folder in folders if name == folder or name.startswith(f"{folder}.")]
    return max(holding, key=len, default=None)


def floor(name):
    """The number of a module's floor. A folder's page, which imports its files, is on their top."""
    place = within(name, {place for places in FLOORS for place in places})
    assert place, f"give {name} a floor in {pathlib.Path(__file__).name}"
    return next(number for number, places in enumerate(FLOORS) if place in places)


def own(imports):
    """The modules of this package among what is imported."""
    names = {name.removeprefix(f"{PACKAGE}.") for name in imports if name.startswith(PACKAGE)}
    found = names & set(MODULES)
    # `from folder import module` names the folder, too, but means the module.
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def outside(imports):
    return {name.partition(".")[0] for name in imports}


def test_the_modules_of_the_layout_are_read():
    some = {
        "layers.masks",
        "models",
        "data.tokenizer",
        "export.runtime.__main__",
        "export.__main__",
    }
    assert some <= set(MODULES)
    assert own(MODULES["layers.blocks"].at_import) == {
        "layers.attention",
        "layers.checks",
        "layers.feed_forward",
    }
    assert "export.tasks" in own(MODULES["export.onnx_model"].at_import)


def test_every_folder_and_every_floor_is_in_use():
    places = {place for places in FLOORS for place in places}
    assert places == {within(name, places) for name in MODULES}


@every_module
def test_imports_point_down_only(name):
    for imported in own(MODULES[name].anywhere):
        assert floor(imported) <= floor(name), f"{name} imports {imported} of a higher floor"


def test_imports_make_no_circle():
    done = set()

    def visit(name, trail):
        assert name not in trail, " imports ".join((*trail, name))
        if name not in done:
            for imported in sorted(own(MODULES[name].anywhere)):
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


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, NO_FRAMEWORK)])
def test_the_bottom_floors_import_no_framework(name):
    assert not outside(MODULES[name].at_import) & FRAMEWORKS


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, KERAS_ONLY)])
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
    assert "export.runtime.signature" in reached


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


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, KERAS_ONLY)])
def test_every_public_name_of_layers_and_models_has_a_docstring(name):
    names = dict(public_definitions(MODULES[name].tree))
    assert names or MODULES[name].path.stem == "__init__"
    missing = [path for path, node in names.items() if not ast.get_docstring(node)]
    assert not {path for path in missing if path.rpartition(".")[2] not in KERAS_METHODS}


def test_every_exported_name_has_a_docstring():
    assert keras_transformer.__all__
    for name in keras_transformer.__all__:
        assert (getattr(keras_transformer, name).__doc__ or "").strip(), name


@pytest.mark.parametrize("folder", [n for n in MODULES if MODULES[n].path.stem == "__init__"])
def test_every_folder_says_what_lives_in_it_and_what_it_may_import(folder):
    page = " ".join(ast.get_docstring(MODULES[folder].tree).split())
    assert "What lives here" in page and "What may be imported" in page and " new " in page


if __name__ == "__main__":
    for number, places in reversed([*enumerate(FLOORS)]):
        print(f"floor {number}: {', '.join(sorted(places))}")
        for name in (name for name in MODULES if floor(name) == number):
            print(f"    {name} <- {', '.join(sorted(own(MODULES[name].anywhere))) or 'nothing'}")
