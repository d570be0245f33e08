"""Importers convert weights that were trained elsewhere to weights of our models.

An origin is a table of its tensors and their places in our models, of its special ids and settings.
`tables` reads any table: it accounts for every tensor, makes the model and assigns the weights.
Exporters read the same tables backwards. The origins are `albert`, `bart`, `bergamot`,
`bert`, `ctranslate2`, `deit`, `distilbert`, `esm`, `fairseq`, `gpt2`, `marian`, `mbart`,
`modernbert`, `moonshine`, `mt5`, `opennmt`, `pegasus`, `roberta`, `t5`, `torch_transformer`,
`trocr`, `vit`, `whisper` and `xlm_roberta`. `keras_hub` copies no weights: its models (`hub_model`)
share the layers of KerasHub.

Readers of files give named tensors to a table: `checkpoint`, `marian_binary`,
`marian_shortlist`, `ctranslate2_binary`.
`mapping` has the order of special rows and the assignment of weights, `activations` their names,
`pieces` and `speech_tokens` tokenizers with our ids. `encoders` has the table of `bert` and its
relatives, which list only other names, and `bert_heads` their heads. `encoder_decoders` has the
table of `marian` and its relatives, `vit` the one of models that read pictures. `stack` has blocks
for sources without ids. `trial` runs a sentence through the export of an import.

Importers need NumPy, Keras and this package, and `safetensors` to read a file. They need the
origin's library only for KerasHub and for PyTorch's own files. A new origin is one file with a
table, such as `gpt2`, and its name below; the documentation of the weights has an example. A file
that an export can use, such as a shortlist, is read by the function `load_NAME` of its origin, and
has a row in `EXTRAS` of `__main__`.
"""

from keras_transformer.importers import (
    albert,
    bart,
    bergamot,
    bert,
    ctranslate2,
    deit,
    distilbert,
    esm,
    fairseq,
    gpt2,
    keras_hub,
    marian,
    mbart,
    modernbert,
    moonshine,
    mt5,
    opennmt,
    pegasus,
    roberta,
    t5,
    torch_transformer,
    trocr,
    vit,
    whisper,
    xlm_roberta,
)
from keras_transformer.importers.mapping import assign_weights
from keras_transformer.importers.speech_tokens import SpeechSettings, speech_search

__all__ = [
    "SpeechSettings",
    "albert",
    "assign_weights",
    "bart",
    "bergamot",
    "bert",
    "ctranslate2",
    "deit",
    "distilbert",
    "esm",
    "fairseq",
    "gpt2",
    "keras_hub",
    "marian",
    "mbart",
    "modernbert",
    "moonshine",
    "mt5",
    "opennmt",
    "pegasus",
    "roberta",
    "speech_search",
    "t5",
    "torch_transformer",
    "trocr",
    "vit",
    "whisper",
    "xlm_roberta",
]
