"""Checkpoints that are whole or not there, and averages of the weights in them.

A checkpoint is one `.npz` file. It is written aside, flushed to the disk and then moved into place
(`files`), so that a process that is killed while writing leaves a `.partial` folder that is never
read. Every array has a checksum (CRC-32, of the zip format), which is verified on reading.
"""

import json
import os
import pathlib
import zipfile
import zlib

import keras
import numpy as np

from keras_transformer.files import whole_file

_CORRUPT = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


def write_checkpoint(path, arrays, info):
    """Writes arrays and a note to a file, atomically.

    Args:
        path: where to; an existing file is replaced.
        arrays: dictionary from name to NumPy array.
        info: anything that JSON can hold.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, sync=True) as aside, open(aside, "wb") as file:
        np.savez(file, info=np.array(json.dumps(info)), **arrays)


def read_checkpoint(path):
    """Reads what `write_checkpoint` has written, and verifies all of it.

    Returns:
        The arrays (dictionary) and the note.

    Raises:
        ValueError: the file is damaged or no checkpoint.
        FileNotFoundError: there is none.
    """
    try:
        # Opened here: `np.load` would leave a file open that is not a whole zip.
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        info = json.loads(str(arrays.pop("info")))
    except FileNotFoundError:
        raise
    except _CORRUPT as error:
        raise ValueError(
            f"{path} is damaged or no checkpoint of this package ({error}). Remove it; the one "
            "before it is used then."
        ) from error
    return arrays, info


def write_weights(path, model, info):
    """Writes the weights of a model; `model.set_weights(average_checkpoints([path]))` reads them.

    Under a strategy of several machines the first one writes.
    """
    if is_chief(model):
        write_checkpoint(path, values_of({"weights": model.weights}), info)


def average_checkpoints(paths, last=None):
    """Averages the weights of several checkpoints (section 6.1: the last 5, "big" the last 20).

    Args:
        paths: list of checkpoint files, or a folder, whose `.npz` files are taken in the order of
            their names; `CheckpointAveraging` and `TrainingCheckpoint` name them by epoch.
        last: use only this many, from the end. Defaults to all.

    Returns:
        List of NumPy arrays for `model.set_weights`, averaged in float64. Integer weights are not
        averaged but taken from the last file.

    Raises:
        ValueError: no file, `last` below 1 or above the number of files, a damaged file, or files
            of different models.

    Example:

    >>> model.set_weights(average_checkpoints("run/weights", last=5))  # doctest: +SKIP
    """
    if isinstance(paths, str | os.PathLike):
        paths = sorted(pathlib.Path(paths).glob("*.npz"))
    available = len(paths)
    if last is not None and not 1 <= last <= available:
        raise ValueError(f"last={last} checkpoints were asked for, but there are {available}.")
    paths = paths[-last:] if last else paths
    if not paths:
        raise ValueError("There is no checkpoint to average: the list or folder is empty.")
    sums = shapes = None
    for path in paths:
        arrays = arrays_of(read_checkpoint(path)[0], "weights")
        if shapes is None:
            shapes = [a.shape for a in arrays]
            sums = [np.zeros(s, "float64") for s in shapes]
        if [a.shape for a in arrays] != shapes:
            raise ValueError(f"{path} holds weights of other shapes than {paths[0]}.")
        for total, array in zip(sums, arrays, strict=True):
            total += array
    whole = [np.issubdtype(a.dtype, np.integer) for a in arrays]  # the last file's arrays
    return [
        array if integer else (total / len(paths)).astype(array.dtype)
        for total, array, integer in zip(sums, arrays, whole, strict=True)
    ]


def arrays_of(arrays, name):
    """The arrays `name/0`, `name/1`, ... as a list."""
    return [arrays[f"{name}/{i}"] for i in range(sum(k.startswith(f"{name}/") for k in arrays))]


def values_of(groups):
    """Current values of variables, as a dictionary that `arrays_of` takes apart."""
    return {
        f"{name}/{i}": keras.ops.convert_to_numpy(variable)
        for name, variables in groups.items()
        for i, variable in enumerate(variables)
    }


def is_chief(model):
    """Whether this process writes: on one machine, or as the first of several workers."""
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow's models have one
    resolver = getattr(strategy, "cluster_resolver", None)
    return resolver is None or not resolver.task_id


class CheckpointAveraging(keras.callbacks.Callback):
    """Keeps the weights of the last epochs on disk, one file each, to be averaged.

    Args:
        folder: where to; it holds nothing else.
        last: how many epochs to keep. Defaults to 5.

    Raises:
        ValueError: `last` below 1.

    Example:

    >>> averaging = CheckpointAveraging("run/weights", last=10)
    >>> model.fit(train, epochs=30, callbacks=[averaging])  # doctest: +SKIP
    >>> model.set_weights(averaging.average())  # doctest: +SKIP
    """

    def __init__(self, folder, last=5):
        super().__init__()
        if last < 1:
            raise ValueError(f"last must be at least 1, but it is {last}.")
        self.folder = pathlib.Path(folder)
        self.last = last

    def on_epoch_end(self, epoch, logs=None):
        write_weights(self.folder / f"weights-{epoch:05d}.npz", self.model, {"epoch": epoch})
        for old in sorted(self.folder.glob("weights-*.npz"))[: -self.last]:
            old.unlink(missing_ok=True)  # another machine may be quicker

    def average(self):
        """The mean of the weights on disk, for `model.set_weights`."""
        return average_checkpoints(self.folder)
