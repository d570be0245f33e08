"""Types that the annotations of the package share."""

import os
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

# A tensor of the backend in use, or an array that Keras converts to one. The backends share no base
# class, so type checkers see `Any`; docstrings and comments give the shapes.
Tensor: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]
Ids: TypeAlias = npt.NDArray[np.integer[Any]]
StrPath: TypeAlias = str | os.PathLike[str]
# A sound: a path, the content of a file, or a file that is open in binary mode; or samples.
SoundFile: TypeAlias = StrPath | bytes | bytearray | memoryview | BinaryIO
Sound: TypeAlias = SoundFile | Array
# Sizes of a tensor's axes; `None` for a size that is known at run time only.
Shape: TypeAlias = tuple[int | None, ...]
