"""Files that the first pytest worker that needs them writes. Tests only read them."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator

folder = pathlib.Path()  # `conftest.py` sets it


def once(name: str, write: Callable[[pathlib.Path], object]) -> pathlib.Path:
    """Returns the path of a shared file or folder.

    Args:
        name: its name, the same for all users.
        write: function that writes it to a path, completely or not at all.
    """
    folder.mkdir(exist_ok=True)
    path = folder / name
    with alone(path):
        if not path.exists():
            write(path)
    return path


@contextlib.contextmanager
def alone(path: pathlib.Path) -> Iterator[None]:
    """Locks a path against pytest's other workers."""
    with open(path.parent / f"{path.name}.lock", "w") as file:
        with contextlib.suppress(ImportError):  # on Windows
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
