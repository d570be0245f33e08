"""Computes results for whole archives of text with an artefact, on one machine or many, with Ray.

    python -m keras_transformer.export.archive out/onnx 'in/*.txt.gz' out/archive

Input files are divided into parts of some lines. A part becomes one output file, written aside and
moved into place, so that it is complete or missing. The order of the lines is the order of the
parts' names. A stopped or killed job continues with the missing parts.

Contents, from the bottom up:

- `inputs`: text, JSON lines and Parquet, divided into parts and read;
- `outputs`: writes parts, in the same three formats;
- `plan`: the parts of a job, written once, and compared with the arguments of a later run;
- `worker`: computes parts, several at a time, in its own process;
- `job`: the whole job, with Ray Data and progress; `__main__`: the command.

Imports: `export.runtime`, `export.ray_cluster`, their imports, and, only inside functions, Ray and
PyArrow (package `ray[data]`). No framework. A new format is a reader in `inputs` and a writer in
`outputs`.
"""

from keras_transformer.export.archive.job import run_archive
from keras_transformer.export.archive.plan import ArchiveError

__all__ = ["ArchiveError", "run_archive"]
