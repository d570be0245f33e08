"""The benchmark scripts: their imports exist, and each has a docstring and one subject."""

import ast
import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("*.py"))}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in SCRIPTS.items()}
# Commands that the documentation names.
COMMANDS = {
    "archive",
    "bergamot",
    "browser",
    "engines",
    "export",
    "families",
    "fine_tuning",
    "gpu",
    "growth",
    "kinds",
    "kinds_speed",
    "layers",
    "little",
    "pretrained",
    "quantization",
    "recomputation",
    "search",
    "service",
    "serving",
    "student",
    "terms",
    "training",
    "training_recipes",
    "whisper",
    "whisper_random",
}


def imports(nodes):
    """Yields (module, name or None) of each import among some nodes."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


def defined(name):
    """Returns the names at the top level of a script."""
    body = TREES[name].body
    found = {imported for _, imported in imports(body)}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", ())
        for target in targets:
            found |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found


def test_documented_commands_exist():
    assert COMMANDS <= SCRIPTS.keys()


def test_names_that_scripts_import_from_the_package_exist():
    pytest.importorskip("tensorflow")
    missing = []
    for name, tree in TREES.items():
        for module, imported in imports(ast.walk(tree)):
            if module.partition(".")[0] == "keras_transformer":
                found = importlib.import_module(module)
                if imported and not hasattr(found, imported):
                    if importlib.util.find_spec(f"{module}.{imported}") is None:
                        missing.append(f"{name}: {module}.{imported}")
    assert missing == []


def test_names_that_scripts_use_of_each_other_exist():
    missing = []
    for name, tree in TREES.items():
        imported = set(imports(ast.walk(tree)))
        used = {(module, name) for module, name in imported if name}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if (node.value.id, None) in imported:
                    used.add((node.value.id, node.attr))
        for module, attribute in used:
            if module in SCRIPTS and attribute not in defined(module):
                missing.append(f"{name}: {module}.{attribute}")
    assert missing == []


def test_every_script_has_a_docstring_and_at_most_280_lines():
    assert [name for name, tree in TREES.items() if not ast.get_docstring(tree)] == []
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in SCRIPTS.items()}
    assert [name for name, count in lines.items() if count > 280] == []


@pytest.mark.full
def test_tables_of_the_pages_match_the_committed_figures():
    # A separate process, because a module of the tests has the name of a benchmark.
    command = [sys.executable, str(SCRIPTS["tables"]), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
