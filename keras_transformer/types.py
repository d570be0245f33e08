"""Types that the annotations of the package share."""

import os
from typing import Any, BinaryIO, Protocol, TypeAlias

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


class AnyTokenizer(Protocol):
    """The methods of a tokenizer that other modules call; see `kt.Tokenizer`."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""

    @property
    def pieces(self) -> list[str]:
        """The pieces in the order of their ids."""

    @property
    def piece_bytes(self) -> list[bytes]:
        """The UTF-8 bytes that each id adds to a text; none for special ids."""

    @property
    def digest(self) -> str:
        """A hash of the pieces."""

    def encode(self, text: Any, sample: bool = ..., alpha: Any = ..., seed: Any = ...) -> Any:
        """Returns the ids of a text, or a list of them for several texts."""

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids of a text, and the start and end of each piece in it."""

    def decode(self, ids: Any) -> Any:
        """Returns the text of ids, or a list of texts of several rows."""

    def save(self, path: StrPath) -> None:
        """Writes one file."""
