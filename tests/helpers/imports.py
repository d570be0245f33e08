"""Reads who imports whom in this package, without importing anything.

Modules are called by their names below the package (`layers.masks`), a folder's own page by the
folder's name, and the package's own page as the package.
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
    at_import: set  # dotted names that are imported when the module is
    anywhere: set  # those, and what its functions and its `__main__` block import


def imported_names(node):
    """Dotted names that an import statement asks for: modules, or what is in them."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide the floor"
        return {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


def runs_later(node):
    """Whether the statements below this one do not run when the module is imported."""
    script = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    return script or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def checks_types(node):
    """Whether the statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def parse(source, path=None):
    """The `Module` of a source text. Imports for annotations only do not count."""
    tree = ast.parse(source, str(path))
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
    return Module(path, tree, at_import, set().union(*(names for _, names in found)))


def read_all():
    """Every module of this package by its name."""
    files = {}
    for root, prefix in ((ROOT / PACKAGE, ()), (ROOT / "export", ("export",))):
        for path in sorted(root.rglob("*.py")):
            parts = (*prefix, *path.relative_to(root).with_suffix("").parts)
            files[".".join(part for part in parts if part != "__init__") or PACKAGE] = path
    return {name: parse(path.read_text("utf-8"), path) for name, path in files.items()}


MODULES = read_all()


def within(name, folders):
    """The longest of `folders` (or modules) that holds the module, or None."""
    holding = [folder for folder in folders if name == folder or name.startswith(f"{folder}.")]
    return max(holding, key=len, default=None)


def pages(names):
    """The pages of the folders that modules lie in, which Python runs before the modules.

    The package's own page is left out: it runs before everything, and is written to do without
    whatever is not installed.
    """
    parts = [name.split(".") for name in names]
    return {".".join(path[:count]) for path in parts for count in range(1, len(path))}


def own(imports):
    """The modules of this package among what is imported, or that hold it."""
    found = set()
    for name in imports:
        if name.partition(".")[0] == PACKAGE:
            short = name.removeprefix(f"{PACKAGE}.")
            while short not in MODULES and "." in short:
                short = short.rpartition(".")[0]  # what the module holds
            found.add(short if short in MODULES else PACKAGE)
    return found


def run_by(name, module):
    """What a module of this name imports, and the pages above that; it runs in its own folders."""
    imported = own(module.anywhere)
    return imported - {name} | pages(imported) - pages({name}) - {name}


def outside(imports):
    """The packages among what is imported, without this one and Python's own."""
    return {name.partition(".")[0] for name in imports} - sys.stdlib_module_names - {PACKAGE}


def reached(names):
    """All modules that run when these are imported, themselves and the pages above them too."""
    found, waiting = set(), set(names)
    while waiting:
        found |= waiting
        imported = set().union(*(own(MODULES[name].at_import) for name in waiting))
        waiting = (imported | pages(imported | waiting)) - found
    return found


def needed(names):
    """The packages that must be installed so that these modules can be imported."""
    return set().union(*(outside(MODULES[name].at_import) for name in reached(names)))


def circle(imports):
    """Names that import each other in a circle, the first one repeated at the end; or None.

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
