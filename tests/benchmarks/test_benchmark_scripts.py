"""The benchmarks' scripts: what they import is there, each explains itself, names are their own."""

import ast
import collections
import importlib
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

every_script = pytest.mark.parametrize("name", SCRIPTS)


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


@every_script
def test_what_a_script_imports_from_the_package_is_there(name):
    pytest.importorskip("tensorflow")
    for module, imported in imports(name):
        if module.partition(".")[0] == "keras_transformer":
            found = importlib.import_module(module)
            if imported and not hasattr(found, imported):
                importlib.import_module(f"{module}.{imported}")


@every_script
def test_what_a_script_imports_from_its_neighbours_is_there(name):
    for module, imported in imports(name):
        if module in SCRIPTS and imported:
            assert imported in defined(module), f"{name} imports {imported} from {module}"


@every_script
def test_what_a_script_uses_of_its_neighbours_is_there(name):
    neighbours = {module for module, imported in imports(name) if not imported} & SCRIPTS.keys()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in neighbours:
                assert node.attr in defined(node.value.id), f"{node.value.id}.{node.attr}"


@every_script
def test_a_script_explains_itself_and_has_one_subject(name):
    assert ast.get_docstring(TREES[name])
    assert len(SCRIPTS[name].read_text("utf-8").splitlines()) <= 280


def test_no_two_files_of_tests_and_benchmarks_have_one_name():
    paths = [*(ROOT / "tests").rglob("*.py"), *SCRIPTS.values()]
    names = collections.Counter(path.name for path in paths)
    assert {name for name, count in names.items() if count > 1} <= {"conftest.py", "__init__.py"}
