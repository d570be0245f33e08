"""The benchmarks' scripts: what they import is there, each explains itself, names are their own."""

import ast
import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("*.py"))}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in SCRIPTS.items()}
# Commands that the documentation names.
COMMANDS = {
    "archive",
    "bergamot",
    "browser",
    "export",
    "gpu",
    "growth",
    "kinds",
    "kinds_speed",
    "layers",
    "own_encoders",
    "pretrained",
    "search",
    "serving",
    "training",
}


def imports(name):
    """(module, name or None) of each import, those within functions included."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


def defined(name):
    """Names at the top level of a script."""
    found = {name for _, name in imports_at_top(name)}
    for node in TREES[name].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        for target in getattr(node, "targets", ()):
            found |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found


def imports_at_top(name):
    for node in TREES[name].body:
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


def test_the_commands_are_there():
    assert COMMANDS <= SCRIPTS.keys()


def test_what_scripts_import_from_the_package_is_there():
    pytest.importorskip("tensorflow")
    missing = []
    for name in SCRIPTS:
        for module, imported in imports(name):
            if module.partition(".")[0] == "keras_transformer":
                found = importlib.import_module(module)
                if imported and not hasattr(found, imported):
                    if importlib.util.find_spec(f"{module}.{imported}") is None:
                        missing.append(f"{name}: {module}.{imported}")
    assert missing == []


def test_what_scripts_import_from_their_neighbours_is_there():
    missing = [
        f"{name}: {module}.{imported}"
        for name in SCRIPTS
        for module, imported in imports(name)
        if module in SCRIPTS and imported and imported not in defined(module)
    ]
    assert missing == []


def test_what_scripts_use_of_their_neighbours_is_there():
    missing = []
    for name, tree in TREES.items():
        neighbours = {module for module, imported in imports(name) if not imported} & SCRIPTS.keys()
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = node.value.id
                if module in neighbours and node.attr not in defined(module):
                    missing.append(f"{name}: {module}.{node.attr}")
    assert missing == []


def test_every_script_explains_itself():
    assert [name for name, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_every_script_has_one_subject():
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in SCRIPTS.items()}
    assert [name for name, count in lines.items() if count > 280] == []
