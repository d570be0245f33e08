"""Marian's binary files, which Bergamot and Firefox ship: a model, and a lexical shortlist.

Everything in them is little-endian. Nothing in them is code, and nothing is run.
"""

import math
import pathlib

import numpy as np

VERSION = 1
CONFIG = "special:model.yml"
FLOAT32, FLOAT16, INT8, INTGEMM8 = 0x404, 0x402, 0x101, 0x4101
FLOATS = {FLOAT32: "<f4", FLOAT16: "<f2"}
ALIGNMENT = 256  # of where the numbers of a tensor begin
# Multipliers of activations, for products of integers. In float32 nobody reads them.
ACTIVATIONS = "_QuantMultA"
SHORTLIST_MAGIC = 0xF11A48D5013417F5


class _Reader:
    """The bytes of a file, taken one part after the other."""

    def __init__(self, path):
        self.data, self.at = pathlib.Path(path).read_bytes(), 0

    def take(self, dtype, count, what):
        """The next `count` numbers."""
        end = self.at + count * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(
                f"it is cut off: {what} ends at byte {end:,}, the file at {len(self.data):,}. Copy "
                "it anew."
            )
        taken = np.frombuffer(self.data, dtype, count, self.at)
        self.at = end
        return taken


def read_model(path):
    """The weights and the configuration of a model, `model.*.bin`.

    Args:
        path: the file. Weights of 8 bits are multiplied out, as `intgemm` would.

    Returns:
        A pair: dict from name to float32 array, matrices (inputs, outputs); and the configuration,
        dict from key to str, number, bool or list.

    Raises:
        ValueError: no file of this format and version, one that is cut off, or numbers of a type
            that is not known. The message names the file.

    Example:

    >>> arrays, config = read_model("model.enpt.intgemm.alphas.bin")  # doctest: +SKIP
    """
    try:
        return _read_model(_Reader(path))
    except ValueError as error:  # of UTF-8, too
        raise ValueError(f"{path} cannot be read as a model: {error}") from error


def _read_model(reader: _Reader) -> tuple[dict[str, np.ndarray], dict]:
    version, count = (int(number) for number in reader.take("<u8", 2, "the header"))
    if version != VERSION:
        raise ValueError(
            f"it is no model in Marian's binary format of version {VERSION}, for it begins with "
            f"{version}. Convert a model.npz with marian-conv; decompress a compressed file."
        )
    if 32 * count > len(reader.data):
        raise ValueError(f"it says it has {count:,} tensors, more than its bytes can hold.")
    headers = reader.take("<u8", 4 * count, "the list of tensors").reshape(count, 4).tolist()
    names = [
        bytes(reader.take("u1", header[0], "a name")).rstrip(b"\0").decode() for header in headers
    ]
    shapes = [
        tuple(reader.take("<i4", header[2], f"the shape of {name!r}").tolist())
        for name, header in zip(names, headers, strict=True)
    ]
    padding = int(reader.take("<u8", 1, "the padding")[0])
    reader.take("u1", padding, "the padding")
    arrays, config = {}, None
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        payload = reader.take("u1", size, repr(name))
        if name == CONFIG:
            config = read_settings(bytes(payload).rstrip(b"\0").decode())
        elif not name.endswith(ACTIVATIONS):
            arrays[name] = _numbers(name, shape, kind, payload)
    if config is None:
        raise ValueError(f"it has no {CONFIG!r}, which says how its model is made.")
    return arrays, config


def _numbers(name, shape, kind, payload):
    """The float32 array of a tensor."""
    count = math.prod(shape)
    if kind in FLOATS:
        width = np.dtype(FLOATS[kind]).itemsize
    elif kind == INTGEMM8:
        width = 1
    else:
        raise ValueError(
            f"{name!r} holds numbers of type {kind:#x}. Known are float32, float16 and intgemm8: "
            "convert the model with marian-conv --gemm-type float32."
        )
    needed = count * width + (4 if kind == INTGEMM8 else 0)
    if min(shape, default=0) < 1 or len(payload) < needed:
        raise ValueError(
            f"{name!r} has shape {shape}, {needed:,} bytes, but {len(payload):,} bytes of numbers."
        )
    if kind in FLOATS:
        return payload[: count * width].view(FLOATS[kind]).astype(np.float32).reshape(shape)
    multiplier = payload[count:needed].copy().view("<f4")[0]
    if not (np.isfinite(multiplier) and multiplier > 0):
        raise ValueError(f"{name!r} has the scale {multiplier}, which is no positive number.")
    integers = payload[:count].view(np.int8)
    if name.endswith("Wemb"):  # in order of its rows
        return integers.reshape(shape) / multiplier
    if name.endswith("Wt"):
        raise ValueError(f"{name!r}: how intgemm8 orders a transposed matrix is not known here.")
    return integers.reshape(shape[::-1]).T / multiplier  # stored (outputs, inputs)


def write_model(path, arrays, config):
    """Writes a model as `read_model` reads it: matrices as 8-bit integers, vectors as float32.

    Args:
        path: the file, `model.*.bin`.
        arrays: dict from name to array; vectors are (1, n).
        config: dict from key to str, number, bool or list.

    Example:

    >>> write_model("model.bin", {"Wemb": table}, {"dim-emb": 256})  # doctest: +SKIP
    """
    lines = [f"{key}: {_written(value)}\n" for key, value in sorted(config.items())]
    items = [(name, *_payload(name, np.asarray(arrays[name]))) for name in sorted(arrays)]
    text = "".join(lines).encode() + b"\0"
    items.append((CONFIG, INT8, (len(text),), text))
    headers = [(len(name) + 1, kind, len(shape), len(data)) for name, kind, shape, data in items]
    before = np.array([VERSION, len(items), *np.ravel(headers)], "<u8").tobytes()
    before += b"".join(name.encode() + b"\0" for name, *_ in items)
    before += np.concatenate([shape for _, _, shape, _ in items]).astype("<i4").tobytes()
    padding = -(len(before) + 8) % ALIGNMENT
    before += np.array([padding], "<u8").tobytes() + bytes(padding)
    pathlib.Path(path).write_bytes(before + b"".join(data for *_, data in items))


def _payload(name, array):
    """Type, shape and bytes of a tensor."""
    if array.shape[0] == 1:
        kind, data = FLOAT32, array.astype("<f4").tobytes()
    else:
        multiplier = np.float32(127.0 / np.abs(array).max())
        integers = np.rint(array * multiplier).astype(np.int8)
        integers = integers if name.endswith("Wemb") else integers.T
        kind, data = INTGEMM8, integers.tobytes() + multiplier.astype("<f4").tobytes()
    return kind, array.shape, data + bytes(-len(data) % ALIGNMENT)


def read_settings(text):
    """A dict of the YAML that Marian writes: a `key: value` a line, lists as lines `  - value`."""
    settings, key = {}, None
    for line in text.splitlines():
        if line.startswith(("  - ", "- ")) and key is not None:
            if settings[key] is None:
                settings[key] = []
            if not isinstance(settings[key], list):
                raise ValueError(f"the setting {key[:100]!r} is both a value and a list.")
            settings[key].append(_value(line.partition("- ")[2]))
        elif ":" in line and not line.startswith((" ", "#")):
            key, _, value = line.partition(":")
            settings[key] = _value(value)
    return settings


def _written(value):
    """The inverse of `_value`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "".join(f"\n  - {one}" for one in value) or "[]"
    return '""' if value == "" else value


def _value(text):
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if text in ("[]", '""', "''", ""):
        return {"[]": [], "": None}.get(text, "")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text.strip("\"'")


class Shortlist:
    """Which target ids may occur, for each source id: `lex.*.bin`.

    Args:
        first_count: the ids below this one may always occur.
        offsets: where the ids of each source id begin, integers (V + 1,).
        ids: the ids of all source ids in a row.
    """

    def __init__(self, first_count, offsets, ids):
        self.first_count, self.offsets, self.ids = first_count, offsets, ids

    def candidates(self, source_ids):
        """The ids, in order, that may occur where these source ids, end token included, do.

        Filled by the lowest other ids to a multiple of 8, as Marian does.
        """
        chosen = np.zeros(len(self.offsets) - 1, bool)
        chosen[: self.first_count] = True
        for source_id in source_ids:
            chosen[self.ids[self.offsets[source_id] : self.offsets[source_id + 1]]] = True
        chosen[np.flatnonzero(~chosen)[: -chosen.sum() % 8]] = True
        return np.flatnonzero(chosen)


def read_shortlist(path):
    """A `Shortlist` from its file.

    Raises:
        ValueError: no such file, one that is cut off, or one whose checksum is another. The message
            names the file.
    """
    try:
        return _read_shortlist(_Reader(path))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a lexical shortlist: {error}") from error


def _read_shortlist(reader: _Reader) -> Shortlist:
    words = reader.take("<u8", 6, "the header")
    magic, checksum, first_count, _, offset_count, id_count = words.tolist()
    if magic != SHORTLIST_MAGIC:
        raise ValueError("it is no lexical shortlist in Marian's binary format.")
    offsets = reader.take("<u8", offset_count, "the list of offsets").astype(np.int64)
    ids = reader.take("<u4", id_count, "the list of ids").astype(np.int64)
    if checksum != _checksum(np.frombuffer(reader.data[16 : reader.at // 8 * 8], "<u8")):
        raise ValueError("it has another checksum than its content. Copy it anew.")
    within = offset_count and offsets[0] >= 0 and offsets[-1] <= id_count
    if not within or np.any(np.diff(offsets) < 0) or np.any(ids >= offset_count - 1):
        raise ValueError("it holds ids or offsets beyond its vocabulary.")
    return Shortlist(first_count, offsets, ids)


def _checksum(words):
    total, mask = 0, 2**64 - 1
    for word in words.tolist():
        total ^= (word + 0x9E3779B9 + (total << 6) + (total >> 2)) & mask
    return total
