"""Answers whole archives of text with an exported artefact, on one machine or many, by Ray Data.

    python -m keras_transformer.export.archive out/onnx 'in/*.txt.gz' out/archive

Input files are cut into parts of some lines. A part becomes one output file, written aside and
moved into place, so a part is there whole or not at all. The order of the lines is the order of the
parts' names. A job that was stopped, in whatever way, goes on with the parts that are missing.

What lives here, from the bottom up:

- `inputs`: text, JSON lines and Parquet, cut into parts and read;
- `outputs`: what a part is written as, in the same three formats;
- `plan`: what is to be done, written once, and held to what a later run asks for;
- `worker`: answers parts, some of them together, in a process of its own;
- `progress`: lines done, lines a second and the time left;
- `cluster`: Ray, and its workers over all parts, in groups;
- `job`: the whole; `shell`: the command line.

What may be imported: `export.runtime`, what it stands on, and, where they are used, Ray and PyArrow
(extra `ray`). No framework. A new format is a reader in `inputs` and a writer in `outputs`.
"""

from keras_transformer.export.archive.job import ArchiveError, run_archive

__all__ = ["ArchiveError", "run_archive"]
