"""Importers convert weights that were trained elsewhere to weights of our models.

The origins are `bergamot`, `bert`, `ctranslate2`, `fairseq`, `gpt2`, `marian`, `opennmt`,
`torch_transformer` and `whisper`. `keras_hub` copies no weights: its models (`hub_model`) share the
layers of KerasHub. The origins share the readers of files (`checkpoint`, `marian_binary`), the
mapping and assignment of tensors (`mapping`), and tokenizers with our ids (`pieces`,
`speech_tokens`). `bert_heads` has the heads of `bert`, and `trial` runs a sentence through the
export of an import.

Importers need NumPy, Keras and this package, and `safetensors` to read a file. They need the
origin's library only for KerasHub and for PyTorch's own files. A new importer is one file that maps
the names of the origin to our paths and calls `assign_weights`, and its name below.
"""

from keras_transformer.importers import (
    bergamot,
    bert,
    ctranslate2,
    fairseq,
    gpt2,
    keras_hub,
    marian,
    opennmt,
    torch_transformer,
    whisper,
)
from keras_transformer.importers.mapping import assign_weights
from keras_transformer.importers.speech_tokens import SpeechSettings, speech_search

__all__ = [
    "SpeechSettings",
    "assign_weights",
    "bergamot",
    "bert",
    "ctranslate2",
    "fairseq",
    "gpt2",
    "keras_hub",
    "marian",
    "opennmt",
    "speech_search",
    "torch_transformer",
    "whisper",
]
