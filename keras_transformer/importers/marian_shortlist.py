"""Lexical shortlists of Marian, as Bergamot and Firefox ship them: `lex.*.bin`."""

from typing import NamedTuple

import numpy as np

from keras_transformer.importers.marian_binary import Reader, parsed
from keras_transformer.types import Array, Ids, StrPath

MAGIC = 0xF11A48D5013417F5


class Shortlist(NamedTuple):
    """The target ids that each source id allows: `lex.*.bin`.

    Attributes:
        first_count: int; ids below this one are always allowed.
        offsets: (V + 1,) integers, the first index into `ids` for each source id.
        ids: integers, the allowed ids of all source ids, concatenated.
    """

    first_count: int
    offsets: Ids
    ids: Ids


def read_shortlist(path: StrPath) -> Shortlist:
    """Reads a `Shortlist` from its file.

    Raises:
        ValueError: a file of another format, a truncated file, or a wrong checksum. The message
            names the file.
    """
    return parsed(path, "a lexical shortlist", _read)


def _read(reader: Reader) -> Shortlist:
    words = reader.take("<u8", 6, "the header")
    magic, checksum, first_count, _, offset_count, id_count = words.tolist()
    if magic != MAGIC:
        raise ValueError("it is no lexical shortlist in Marian's binary format.")
    offsets = reader.take("<u8", offset_count, "the list of offsets").astype(np.int64)
    ids = reader.take("<u4", id_count, "the list of ids").astype(np.int64)
    if checksum != _checksum(np.frombuffer(reader.data[16 : reader.position // 8 * 8], "<u8")):
        raise ValueError("its checksum differs from its content. Copy it again.")
    within = offset_count and offsets[0] >= 0 and offsets[-1] <= id_count
    if not within or np.any(np.diff(offsets) < 0):
        raise ValueError("it holds offsets beyond its ids, or out of order.")
    return Shortlist(first_count, offsets, ids)


def _checksum(words: Array) -> int:
    total, mask = 0, 2**64 - 1
    for word in words.tolist():
        total ^= (word + 0x9E3779B9 + (total << 6) + (total >> 2)) & mask
    return total
