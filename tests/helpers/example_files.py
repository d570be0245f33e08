"""Writes small files in the formats of public data sets, which tests of their readers open."""

import gzip
import io
import tarfile
import wave
import zipfile

import numpy as np


def write(folder, files):
    """Writes `files`, a dict from names to text or bytes; names with .gz are packed."""
    for name, data in files.items():
        data = data.encode() if isinstance(data, str) else data
        (folder / name).write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
    return folder


def parallel(name, *lines, ending=""):
    """Returns two files of parallel text, whose lines end with their language."""
    return {
        f"{name}.{language}{ending}": "".join(f"{line} {language}\n" for line in lines)
        for language in ("en", "de")
    }


def idx(array, code=8):
    """Returns an array in the IDX format."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.tobytes()


def fashion(part, count, size=28):
    """Returns two files as in Fashion-MNIST. Every pixel of a picture is its number."""
    numbers = np.arange(count)
    pixels = np.tile((numbers % 256).astype("u1")[:, None, None], (1, size, size))
    return {
        f"{part}-images-idx3-ubyte.gz": idx(pixels),
        f"{part}-labels-idx1-ubyte.gz": idx((numbers % 10).astype("u1")),
    }


def wav(samples, channels=1, width=2, rate=8000):
    """Returns a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((channels, width, rate, 0, "NONE", ""))
        sound.writeframes(np.asarray(samples, "<i2").tobytes())
    return file.getvalue()


def digits(recordings):
    """Returns the archive of spoken digits with these recordings: dict from name to bytes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in recordings.items():
            member = tarfile.TarInfo(f"recordings/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return {"fsdd-recordings.tar": file.getvalue()}


def articles(*numbers):
    """Returns a packed treebank of articles with a tree and an empty one each."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("treebank/README", "(no tree")
        for number in numbers:
            tree = f"( (S (NP-SBJ (NN w{number})) (VP (VB x))) )\n( (S (-NONE- *)) )"
            packed.writestr(f"treebank/wsj_{number:04}.mrg", tree)
    return file.getvalue()
