"""Types that the annotations of the package share."""

import os
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

# A tensor of the backend in use, or an array that Keras converts to one. The backends share no base
# class, so type checkers see `Any`; docstrings and comments give the shapes.
Tensor: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]
Ids: TypeAlias = npt.NDArray[np.integer[Any]]
StrPath: TypeAlias = str | os.PathLike[str]
# Sizes of a tensor's axes; `None` for a size that is known at run time only.
Shape: TypeAlias = tuple[int | None, ...]
