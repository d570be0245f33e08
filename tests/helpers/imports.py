"""Reads which modules import each other in this package, without importing anything.

Modules are named below the package (`layers.masks`), an `__init__.py` by its folder, and the
package's `__init__.py` by the package.
"""

import ast
import pathlib
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = "keras_transformer"


@dataclass
class Module:
    path: pathlib.Path
    tree: ast.Module
    at_import: set  # dotted names imported with the module
    anywhere: set  # also imports in functions and the `__main__` block
    for_types: set  # imports under `if TYPE_CHECKING:`


def imported_names(node):
    """Returns dotted names of modules or members that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide the floor"
        return {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


def runs_later(node):
    """Returns whether the statements in this one do not run at import."""
    script = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    return script or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def checks_types(node):
    """Returns whether the statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def parse(source, path=None):
    """Parses a source text into a `Module`, whose tree has no imports for annotations."""
    tree = ast.parse(source, str(path))
    typed = [inner for node in tree.body if checks_types(node) for inner in node.body]
    tree.body = [node for node in tree.body if not checks_types(node)]
    later = {
        id(inner)
        for node in ast.walk(tree)
        if runs_later(node)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = [(id(node) in later, imported_names(node)) for node in ast.walk(tree)]
    at_import = set().union(*(names for is_later, names in found if not is_later))
    anywhere = set().union(*(names for _, names in found))
    return Module(path, tree, at_import, anywhere, set().union(*map(imported_names, typed)))


def read_all():
    """Returns every module of this package by name."""
    files = {}
    for root, prefix in ((ROOT / PACKAGE, ()), (ROOT / "export", ("export",))):
        for path in sorted(root.rglob("*.py")):
            parts = (*prefix, *path.relative_to(root).with_suffix("").parts)
            files[".".join(part for part in parts if part != "__init__") or PACKAGE] = path
    return {name: parse(path.read_text("utf-8"), path) for name, path in files.items()}


MODULES = read_all()


def within(name, folders):
    """Returns the longest of `folders` (or modules) that holds the module, or None."""
    holding = [folder for folder in folders if name == folder or name.startswith(f"{folder}.")]
    return max(holding, key=len, default=None)


def pages(names):
    """Returns the `__init__.py` modules that Python runs before these modules.

    The package's `__init__.py` is left out: it runs first, and allows missing packages.
    """
    parts = [name.split(".") for name in names]
    return {".".join(path[:count]) for path in parts for count in range(1, len(path))}


def own(imports):
    """Returns this package's modules that are imported or hold an imported name."""
    found = set()
    for name in imports:
        if name.partition(".")[0] == PACKAGE:
            short = name.removeprefix(f"{PACKAGE}.")
            while short not in MODULES and "." in short:
                short = short.rpartition(".")[0]  # a member of the module
            found.add(short if short in MODULES else PACKAGE)
    return found


def run_by(name, module):
    """Returns a module's imports and their `__init__.py`, except in the module's folders.

    Imports for annotations count, too: they do not run, but a reader follows them.
    """
    imported = own(module.anywhere | module.for_types)
    return imported - {name} | pages(imported) - pages({name}) - {name}


def outside(imports):
    """Returns the imported packages, without this one and the standard library."""
    return {name.partition(".")[0] for name in imports} - sys.stdlib_module_names - {PACKAGE}


def reached(names):
    """Returns all modules that run when these are imported, each `__init__.py` included."""
    found, waiting = set(), set(names)
    while waiting:
        found |= waiting
        imported = set().union(*(own(MODULES[name].at_import) for name in waiting))
        waiting = (imported | pages(imported | waiting)) - found
    return found


def needed(names):
    """Returns the packages that must be installed to import these modules."""
    return set().union(*(outside(MODULES[name].at_import) for name in reached(names)))


def circle(imports):
    """Returns names that import each other in a circle, the first repeated at the end, or None.

    Args:
        imports: dict from a name to the names that it imports.
    """
    done, trail = set(), []

    def visit(name):
        if name in done:
            return None
        if name in trail:
            return [*trail[trail.index(name) :], name]
        trail.append(name)
        for other in sorted(imports.get(name, ())):
            if found := visit(other):
                return found
        done.add(trail.pop())
        return None

    return next(filter(None, map(visit, imports)), None)
