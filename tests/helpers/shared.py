"""Files that are written once a run, by the first worker that needs them; tests only read them."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator

folder = pathlib.Path()  # `conftest.py` sets it


def once(name: str, write: Callable[[pathlib.Path], object]) -> pathlib.Path:
    """The path of a shared file or folder.

    Args:
        name: its name, the same for all that share it.
        write: function that writes it to a path, whole or not at all.
    """
    folder.mkdir(exist_ok=True)
    path = folder / name
    with alone(path):
        if not path.exists():
            write(path)
    return path


@contextlib.contextmanager
def alone(path: pathlib.Path) -> Iterator[None]:
    """Keeps pytest's other workers waiting, in whatever is done with a path."""
    with open(path.parent / f"{path.name}.lock", "w") as file:
        with contextlib.suppress(ImportError):  # on Windows
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
