"""A small random model in the form of MiniLM, and its folder."""

import json
import string

import pytest

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LETTERS = string.ascii_lowercase + string.digits
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.punctuation, *LETTERS]
PIECES += [f"##{letter}" for letter in LETTERS]


def write(folder):
    """Writes the folder: an encoder, word pieces of one letter, and the pooling of a sentence."""
    config = transformers.BertConfig(vocab_size=len(PIECES), intermediate_size=24, **SIZES)
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", "utf-8")
    names = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    start = "sentence_transformers.models."
    modules = [{"type": start + name, "path": path} for name, path in names.items()]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    return folder
