"""Atomic checkpoint files, and averages of the weights in them.

A checkpoint is one `.npz` file. It is written to a temporary folder, flushed to the disk and then
moved into place (`files`). A process that is killed while writing leaves a `.partial` folder, which
is never read, and which the next checkpoint removes. Every array has a checksum (CRC-32, of the zip
format), which reading verifies.

Arrays are stored under the paths of their variables, such as `weights/token_embedding/embeddings`.
"""

import json
import logging
import os
import pathlib
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.files import checked_path, make_folder, whole_file
from keras_transformer.types import Array, StrPath

_log = logging.getLogger(__name__)

_CORRUPT = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),  # RuntimeError: encrypted, or nested too deep
)


def write_checkpoint(path: StrPath, arrays: Mapping[str, Array], info: Any) -> None:
    """Writes arrays and a note to a file, atomically, and flushes it to the disk.

    Args:
        path: str or path; an existing file is replaced. Missing folders are made.
        arrays: dictionary from name to NumPy array, of any dtype that Keras has.
        info: anything that JSON can hold.
    """
    path = checked_path(path)
    make_folder(path.parent)
    # The file format has no bfloat16: it stores the bytes, and the note stores the dtypes.
    note = {"info": info, "dtypes": {name: str(array.dtype) for name, array in arrays.items()}}
    with whole_file(path, sync=True) as aside, open(aside, "wb") as file:
        np.savez(file, note=np.array(json.dumps(note)), **arrays)


def read_checkpoint(path: StrPath) -> tuple[dict[str, Array], Any]:
    """Reads and verifies a file that `write_checkpoint` has written.

    Returns:
        The arrays (dictionary) and the note.

    Raises:
        ValueError: the file is damaged, or is not a checkpoint.
        FileNotFoundError: the file does not exist.
    """
    try:
        # Opened here, because `np.load` does not close a damaged file.
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            if any(item.compress_type for item in file.zip.infolist()):
                raise ValueError("it is compressed")  # and might fill the memory
            arrays = {name: file[name] for name in file.files}
        note = json.loads(str(arrays.pop("note")))
        dtypes = note["dtypes"]
        arrays = {name: array.view(np.dtype(dtypes[name])) for name, array in arrays.items()}
    except FileNotFoundError:
        raise
    except _CORRUPT as error:
        raise ValueError(
            f"{path} is damaged or no checkpoint of this package ({type(error).__name__}: {error})."
        ) from error
    return arrays, note["info"]


def read_if_whole(path: pathlib.Path) -> dict[str, Array] | None:
    """Returns the arrays of a checkpoint. Logs a missing or damaged one and returns `None`."""
    try:
        return read_checkpoint(path)[0]
    except (FileNotFoundError, ValueError) as error:
        _log.warning("%s", error)
        return None


def keep_newest(path: pathlib.Path, keep: int) -> None:
    """Removes all numbered files like `path` except the newest `keep`.

    Files with a greater number than `path` are damaged or of an earlier run; it removes them, too.

    Args:
        path: the file just written, such as "weights-00003.npz".
        keep: number of files to keep, including `path`.
    """
    found = path.parent.glob(f"{path.name.partition('-')[0]}-*.npz")
    files = {file for file in found if file.is_file()}
    older = sorted(file for file in files if file.name <= path.name)
    for file in files - {*older[-keep:]}:
        file.unlink()


def write_weights(path: pathlib.Path, model: keras.Model, epoch: int, keep: int) -> None:
    """Writes the weights of a model; `model.set_weights(average_checkpoints([path]))` reads them.

    Under a strategy of several machines only the first machine writes.

    Args:
        path: path of the file.
        model: built model.
        epoch: number of the epoch, which the note of the file holds.
        keep: see `keep_newest`.
    """
    if is_chief(model):
        write_checkpoint(path, values_of(keyed({"weights": model.weights})), {"epoch": epoch})
        keep_newest(path, keep)


def average_checkpoints(paths: StrPath | Sequence[StrPath], last: int | None = None) -> list[Array]:
    """Averages the weights of several checkpoints (section 6.1: the last 5; "big": the last 20).

    Args:
        paths: list of checkpoint files, or a folder of `.npz` files, which are read in the order of
            their names; `CheckpointAveraging` and `Run` name them by epoch.
        last: number of files to use, from the end. Defaults to all.

    Returns:
        List of NumPy arrays for `model.set_weights`, averaged in float64. Integer weights come from
        the last file.

    Raises:
        ValueError: there is no file, `last` is below 1 or above the number of files, a file is
            damaged, or the files are of different models.

    Example:

    >>> model.set_weights(average_checkpoints("run/weights", last=5))  # doctest: +SKIP
    """
    if isinstance(paths, str | os.PathLike):
        paths = sorted(pathlib.Path(paths).glob("*.npz"))
    available = len(paths)
    if last is not None and not 1 <= last <= available:
        raise ValueError(f"last={last} must be from 1 to {available}, the number of checkpoints.")
    paths = paths[-last:] if last else paths
    if not paths:
        raise ValueError("There is no checkpoint to average: the list or folder is empty.")
    sums = {}
    for path in paths:
        arrays = arrays_of(read_checkpoint(path)[0], "weights")
        sums = sums or {name: np.zeros(a.shape) for name, a in arrays.items()}
        if {name: a.shape for name, a in arrays.items()} != {n: s.shape for n, s in sums.items()}:
            raise ValueError(f"{path} holds weights of other names or shapes than {paths[0]}.")
        for name, array in arrays.items():
            sums[name] += array
    return [
        array
        if np.issubdtype(array.dtype, np.integer)
        else (sums[name] / len(paths)).astype(array.dtype)
        for name, array in arrays.items()  # of the last file
    ]


def arrays_of(arrays: Mapping[str, Array], group: str) -> dict[str, Array]:
    """Returns the arrays of a group, by their names within it."""
    return {
        name.removeprefix(f"{group}/"): array
        for name, array in arrays.items()
        if name.startswith(f"{group}/")
    }


def values_of(variables: Mapping[str, keras.Variable]) -> dict[str, Array]:
    """Returns the current values of variables."""
    return {name: keras.ops.convert_to_numpy(variable) for name, variable in variables.items()}


def keyed(groups: Mapping[str, Sequence[keras.Variable]]) -> dict[str, keras.Variable]:
    """Returns variables by names `group/path`, which are the same in every process.

    Args:
        groups: dictionary from a group's name to variables. The variables of an optimizer must be
            in the group "optimizer".
    """
    parts = set()
    for group, variables in groups.items():
        for variable in variables:
            path = variable.path.split("/")
            # An optimizer variable's path ends with its weight's path, joined by "_".
            parts.update(path[:1] if group == "optimizer" else path)
    stable = stable_names(parts)
    names = "|".join(map(re.escape, sorted(stable, key=len, reverse=True)))
    pattern = re.compile(f"(?<![^/_])(?:{names})(?![^/_])")
    found = {}
    for group, variables in groups.items():
        for variable in variables:
            path = pattern.sub(lambda match: stable[match[0]], variable.path)
            key = f"{group}/{path}"
            while key in found:  # Keras lets two layers share a name
                key += "+"
            found[key] = variable
    return found


def state_of(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns all variables that further training depends on, except for metrics."""
    known = {id(v) for v in model.weights}
    seeds = [v for v in model.variables if id(v) not in known]  # of dropout
    return keyed({"weights": model.weights, "seeds": seeds, "optimizer": model.optimizer.variables})


def stable_names(names: Iterable[str]) -> dict[str, str]:
    """Renumbers layer names: "dense_7", "dense_9" become "dense", "dense_1".

    Keras' own numbers count all layers of the process.

    Returns:
        Dictionary from each name to a name that ends with its rank among the names that differ only
        in the number. Rank 0 has no number.
    """
    numbered: dict[str, dict[int, str]] = {}
    for name in names:
        base, number = re.fullmatch(r"(.*?)(?:_(\d+))?", name, re.DOTALL).groups()
        numbered.setdefault(base, {})[int(number or -1)] = name
    return {
        name: f"{base}_{rank}" if rank else base
        for base, found in numbered.items()
        for rank, (_, name) in enumerate(sorted(found.items()))
    }


def assign(
    variables: Mapping[str, keras.Variable], arrays: Mapping[str, Array], path: object
) -> None:
    """Assigns arrays to the variables with the same names.

    Args:
        variables: from `keyed`.
        arrays: one for each variable.
        path: the file of the arrays, for error messages.

    Raises:
        ValueError: a name is missing on one side, or shapes differ.
    """
    here = {name: tuple(variable.shape) for name, variable in variables.items()}
    there = {name: array.shape for name, array in arrays.items()}
    wrong = [
        f"{name} {here.get(name, 'missing')} in the model, {there.get(name, 'missing')} in the file"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    if wrong:
        raise ValueError(
            f"{path} does not fit this model: {'; '.join(wrong[:5])} ({len(wrong)} in all). Was "
            "the model, its optimizer or its metrics changed? Undo that, or use another folder."
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def is_chief(model: keras.Model) -> bool:
    """Returns whether this process writes files: the only one, or the first of several workers."""
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow's models have one
    resolver = getattr(strategy, "cluster_resolver", None)
    return resolver is None or not resolver.task_id


class CheckpointAveraging(keras.callbacks.Callback):
    """Saves the weights of the last epochs, one file each, to average them.

    A new run in the same folder replaces the files of the earlier run.

    Args:
        folder: str or path of the folder to write; use it for nothing else.
        last: number of epochs to keep. Defaults to 5.

    Raises:
        ValueError: `last` below 1.

    Example:

    >>> averaging = CheckpointAveraging("run/weights", last=10)
    >>> model.fit(train, epochs=30, callbacks=[averaging])  # doctest: +SKIP
    >>> model.set_weights(averaging.average())  # doctest: +SKIP
    """

    def __init__(self, folder: StrPath, last: int = 5) -> None:
        super().__init__()
        if last < 1:
            raise ValueError(f"last must be at least 1, but it is {last}.")
        self.folder: pathlib.Path = checked_path(folder)
        self.last = last

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        path = self.folder / f"weights-{epoch:05d}.npz"
        write_weights(path, self.model, epoch, keep=self.last)

    def average(self) -> list[Array]:
        """Returns the mean of the weights on disk, for `model.set_weights`."""
        return average_checkpoints(self.folder)
