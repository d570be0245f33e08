"""A small random OPUS-MT folder: two SentencePiece models, language tokens."""

import json

from helpers import published
from helpers.bergamot_model import vocabulary as trained
from helpers.published import transformers

from keras_transformer.importers.pieces import piece_ids

SOURCE = ["um gato dorme na janela .", "dois cães correm no parque .", "três homens comem pão !"]
TARGET = ["a cat sleeps at the window .", "two dogs run in the park .", "three men eat bread !"]
TEXTS = [*SOURCE, ">>eng<< " + SOURCE[1], "um pão ½ corre", "gato"]


def write(folder):
    """Writes it. Its vocabulary lacks two pieces of the source's model.

    Returns:
        The model of `transformers`, and its `{piece: id}`.
    """
    source, target = trained(SOURCE * 9, 50), trained(TARGET * 9, 50)
    own = [piece for piece in piece_ids(source) if len(piece) > 1 and piece[0] != "<"]
    known = dict.fromkeys([*piece_ids(source), *piece_ids(target)])
    kept = sorted(piece for piece in known if piece not in ("</s>", "<unk>", *own[:2]))
    pieces = ["</s>", "<unk>", *kept, ">>eng<<", "<pad>"]
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    ids = {piece: number for number, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(ids), "utf-8")
    config = transformers.MarianConfig(
        vocab_size=len(ids),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_position_embeddings=40,
        pad_token_id=ids["<pad>"],
        eos_token_id=0,
        decoder_start_token_id=ids["<pad>"],
        activation_function="swish",
        scale_embedding=True,
        forced_eos_token_id=None,
    )
    model = published.drawn(transformers.MarianMTModel(config))
    model.save_pretrained(folder)
    return model, ids


def tokenizer(folder):
    """Returns the `transformers` tokenizer of a folder."""
    return transformers.MarianTokenizer(
        source_spm=str(folder / "source.spm"),
        target_spm=str(folder / "target.spm"),
        vocab=str(folder / "vocab.json"),
    )
