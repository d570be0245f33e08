"""Importers: weights that were trained elsewhere become weights of our models.

What lives here: what every importer ends with, weights assigned by their documented paths
(`assignment`); what several begin with, files (`checkpoint`, `marian_binary`), names and shapes of
tensors (`mapping`), the order of ids (`vocabulary`) and the tokenizers that give them (`pieces`);
and one file an origin: `bergamot`, `bert`, `fairseq`, `gpt2`, `marian`, `opennmt`,
`torch_transformer`. `keras_hub` copies no weights: its models (`hub_model`) are KerasHub's.

What may be imported: NumPy, Keras, and models, layers and data of this package; `safetensors` when
a file is read. The origin's own library is not needed, but for KerasHub, and for PyTorch where its
own files are read. A new importer is one file that maps the origin's names to our paths and calls
`assign_weights`, and its name below.
"""

from keras_transformer.importers import (
    bergamot,
    bert,
    fairseq,
    gpt2,
    keras_hub,
    marian,
    opennmt,
    torch_transformer,
)
from keras_transformer.importers.assignment import assign_weights

__all__ = [
    "assign_weights",
    "bergamot",
    "bert",
    "fairseq",
    "gpt2",
    "keras_hub",
    "marian",
    "opennmt",
    "torch_transformer",
]
