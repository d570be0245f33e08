"""Computes results for whole archives of text with an artefact, on one machine or many, by Ray.

    python -m keras_transformer.export.archive out/onnx 'in/*.txt.gz' out/archive

Input files are divided into parts of some lines. A part becomes one output file, written aside and
moved into place, so that it is complete or missing. The order of the lines is the order of the
parts' names. A job that was stopped, in whatever way, continues with the parts that are missing.

Contents, from the bottom up:

- `inputs`: text, JSON lines and Parquet, divided into parts and read;
- `outputs`: how a part is written, in the same three formats;
- `plan`: the parts of a job, written once, and compared with what a later run asks for;
- `worker`: computes parts, some of them together, in its own process;
- `job`: the whole, with Ray Data and progress; `__main__`: the command.

Imports: `export.runtime`, `export.ray_cluster`, what these stand on, and, where they
are used, Ray and PyArrow (extra `ray`). No framework. A new format is a reader in `inputs` and a
writer in `outputs`.
"""

from keras_transformer.export.archive.job import run_archive
from keras_transformer.export.archive.plan import ArchiveError

__all__ = ["ArchiveError", "run_archive"]
