"""CTranslate2's `TransformerSpec`: translation models such as Argos' and OpenNMT's.

They are the paper's model: pre-norm or post-norm, with one or two vocabularies. Positions are
sinusoids or a table. The importer recognises other attention, gated networks and other norms by the
names of their tensors, and refuses them.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.importers import ctranslate2_layout as layout
from keras_transformer.importers import pieces
from keras_transformer.importers.tables import Arrays, Special, Table, equal
from keras_transformer.layers.positions import LearnedPositionEncoding, SinusoidalPositionEncoding
from keras_transformer.models import Transformer

SPECIFICATION, REVISION = "TransformerSpec", 7
TENSORS = {
    **layout.TENSORS,
    layout.TABLES[0]: "source_embedding/embeddings",
    "encoder/layernorm_embedding/*": "source_embedding_norm",
    "decoder/layernorm_embedding/*": "target_embedding_norm",
}
EPSILON = 1e-5  # where the configuration does not give one
PADDING = ("<blank>", "<pad>")  # of OpenNMT and of others
# Tables this close to sinusoids are sinusoids that were rounded to 16 bits.
ROUNDING = 2e-3
# SentencePiece models: one for both sides, beside CTranslate2's files or above (Argos); or two.
SHARED_TOKENIZERS = ("tokenizer.model", "sentencepiece.model", "../sentencepiece.model")
SIDE_TOKENIZERS = (("source.spm", "target.spm"), ("tokenizer.model", "target_tokenizer.model"))


def make_table(config: Mapping[str, Any], tensors: Arrays) -> Table:
    """Returns the table of a `TransformerSpec`.

    Args:
        config: `config.json`, and the `folder` and the `specification` of the model.
        tensors: dict from the origin's name to array.
    """
    specification, known = config["specification"], layout.sizes(config["specification"])
    d_model = known["sizes"]["D"]
    special, unknown = _special(config), config["unknown"]
    source, target = layout.TABLES
    copies = equal(tensors, {source: target, layout.KERNEL: target})
    if special[0] != special[1] or unknown[0] != unknown[1]:
        copies.pop(source, None)
    special = special[:1] if source in copies else special
    norm_first = bool(layout.setting(specification, "pre_norm", 1))
    embedding_norm = "encoder/layernorm_embedding/gamma" in tensors
    use_bias = "encoder/layer_0/self_attention/linear_0/bias" in tensors
    sinusoidal = _are_sinusoids(tensors, d_model)
    length = max(known["sizes"]["P"], known["sizes"]["Q"])
    positions: Any = "sinusoidal"
    if not sinusoidal:
        known["sizes"] |= {"P": length, "Q": length}
        positions = LearnedPositionEncoding(length, trainable=False)
    parts = {
        r"(en|de)coder_norm/\w+": norm_first,
        r"\w+_embedding_norm/\w+": embedding_norm,
        r"\w+/\w+_attention/\w+/bias": use_bias,
        r"\w+/output_bias": layout.BIAS in tensors,
        r"\w+_positions/embeddings": not sinusoidal,
    }
    heads = {layout.heads(specification, side) for side in layout.SIDES}
    if len(heads) > 1:
        raise ValueError(f"The sides have {sorted(heads)} heads, but our sides share one number.")
    return Table(
        TENSORS,
        num_heads=heads.pop(),
        special=special,
        unknown=unknown,
        copies=copies,
        spare="|".join(layout.POSITIONS) if sinusoidal else "",
        without="|".join(pattern for pattern, has in parts.items() if not has),
        scale=layout.scale(specification, d_model) * d_model**-0.5,
        settings={
            "activation": layout.activation(specification),
            "norm_first": norm_first,
            "positions": positions,
            "use_bias": use_bias,
            "epsilon": _epsilon(config),
            "embedding_norm": embedding_norm,
        },
        **known,
    )


def table_of(model: Transformer) -> Table:
    """Returns the table with which an export writes a model, its positions included."""
    special = [(size, *[None] * 4) for size in (model.vocab_size, model.target_vocab_size) if size]
    source, target = layout.TABLES
    copies = {target: source} if len(special) == 1 else {}
    if model.tie_output:
        copies[layout.KERNEL] = target if len(special) > 1 else source
    return Table(
        TENSORS,
        sizes={"D": model.d_model},
        layers={
            "encoder": len(model.encoder_stack.blocks),
            "decoder": len(model.decoder_stack.blocks),
        },
        special=special,
        copies=copies,
        parts=layout.PARTS,
    )


def vocabulary(folder: pathlib.Path, config: Mapping[str, Any]) -> pieces.Vocabulary:
    """Returns the tokenizers of a folder."""
    models, reads_end = _read_tokenizers(folder, config)
    ids = [layout.ids(names) for names in _vocabularies(folder)]
    return pieces.of_both_sides(models, ids, ids[0] == ids[1], reads_end=reads_end)


def _special(config: Mapping[str, Any]) -> list[Special]:
    """Returns the numbers of ids of source and target, and their special ids."""
    tokens = [config.get(f"{name}_token") for name in ("unk", "decoder_start", "eos")]
    if not all(isinstance(token, str) for token in tokens):
        raise ValueError(
            f"{config['folder'] / 'config.json'} must name the unknown token, the decoder's start "
            f"and the end token, but has {tokens!r:.100}."
        )
    unknown, begin, end = tokens
    # Without a start token, the decoder starts with a row of zeros.
    zeros = layout.setting(config["specification"], "start_from_zero_embedding", 0)
    found = []
    for names in _vocabularies(config["folder"]):
        ids = layout.ids(names)
        pad = next((ids[piece] for piece in PADDING if piece in ids), None)
        start = None if zeros else ids.get(begin)
        unknown_id, end_id = (pieces.special_id(ids, piece) for piece in (unknown, end))
        found.append((len(names), pad, unknown_id, start, end_id))
    return found


def _vocabularies(folder: pathlib.Path) -> list[list[str]]:
    """Reads the pieces of source and target, in the order of their ids."""
    if any((folder / f"shared_vocabulary{kind}").exists() for kind in (".json", ".txt")):
        return [layout.read_vocabulary(folder, "shared_vocabulary")] * 2
    return [layout.read_vocabulary(folder, f"{text}_vocabulary") for text in layout.SIDES.values()]


def _epsilon(config: Mapping[str, Any]) -> float:
    epsilon = config.get("layer_norm_epsilon") or EPSILON
    if type(epsilon) is not float or not 0 < epsilon < 1:
        raise ValueError(f"config.json says layer_norm_epsilon={epsilon!r:.50}.")
    return epsilon


def _are_sinusoids(tensors: Arrays, d_model: int) -> bool:
    """Returns whether both tables of positions are our sinusoids, up to rounding."""
    tables = [tensors[name] for name in layout.POSITIONS]
    if d_model % 2 or any(table.shape[1] != d_model for table in tables):
        return False
    nothing = np.zeros((1, max(map(len, tables)), d_model), "float32")
    sinusoids = np.asarray(SinusoidalPositionEncoding()(nothing))[0]
    return all(
        np.allclose(table, sinusoids[: len(table)], rtol=0, atol=ROUNDING) for table in tables
    )


def _read_tokenizers(folder: pathlib.Path, config: Mapping[str, Any]) -> tuple[list[bytes], bool]:
    """Reads the SentencePiece models of both sides, and whether sources have an end token.

    In OPUS-MT's folders the tokenizer adds this token, otherwise CTranslate2.
    """
    if config.get("add_source_bos"):
        raise ValueError(
            f"{folder / 'config.json'} says add_source_bos=true, but `Translator` reads sources "
            "without a begin token. Use load_model, and pass ids."
        )
    reads_end = config.get("add_source_eos") is True
    for pair in SIDE_TOKENIZERS:
        if all((folder / name).exists() for name in pair):
            models = [pieces.read_spm(folder / name) for name in pair]
            return models, reads_end or pair == SIDE_TOKENIZERS[0]
    for name in SHARED_TOKENIZERS:
        if (folder / name).exists():
            return [pieces.read_spm(folder / name)] * 2, reads_end
    raise FileNotFoundError(
        f"{folder} has no SentencePiece model: {SHARED_TOKENIZERS} or {SIDE_TOKENIZERS}. Copy it "
        "there, or use load_model."
    )
