"""Tokenizers of the `tokenizers` library with our ids: BERT's word pieces, GPT-2's byte pairs.

Text is cut as before, for ids play no part in that: only the numbers in the JSON are others.
"""

import json
import os
import pathlib

from keras_transformer.importers.checkpoint import check_ids, read_json
from keras_transformer.importers.vocabulary import our_ids
from keras_transformer.special_ids import BEGIN_ID
from keras_transformer.text.json_tokenizer import JsonTokenizer


def renumbered(config, order, begin=None):
    """A `JsonTokenizer` with our ids.

    Args:
        config: dict, the content of `tokenizer.json`.
        order: the origin's id of each of our rows.
        begin: the piece that every text begins with, such as "[CLS]", or `None`.

    Raises:
        ValueError: a piece has an id that is not among the rows.
    """
    ours = our_ids(order)
    vocabulary = config["model"]["vocab"]
    added = config.get("added_tokens") or []
    known = [*vocabulary.items(), *((token["content"], token["id"]) for token in added)]
    beyond = [piece for piece, number in known if number not in ours]
    if beyond:
        raise ValueError(
            f"The tokenizer has {len(beyond)} pieces that the model has no row for: {beyond[:5]}."
        )
    template = None
    if begin is not None:
        text = {"Sequence": {"id": "A", "type_id": 0}}
        first = {"SpecialToken": {"id": begin, "type_id": 0}}
        special = {begin: {"id": begin, "ids": [BEGIN_ID], "tokens": [begin]}}
        other = {"Sequence": {"id": "B", "type_id": 1}}
        template = {"type": "TemplateProcessing", "single": [first, text]}
        template |= {"pair": [first, text, other], "special_tokens": special}
    # Added tokens too: the library would number those that the vocabulary lacks by itself.
    numbers = {piece: ours[number] for piece, number in known}
    changed = {
        **config,
        "model": {**config["model"], "vocab": numbers},
        "added_tokens": [{**token, "id": ours[token["id"]]} for token in added],
        "post_processor": template,
        "truncation": None,
        "padding": None,
    }
    return JsonTokenizer(json.dumps(changed, ensure_ascii=False))


def read_tokenizer(path: str | os.PathLike) -> dict:
    """The content of a `tokenizer.json`; raises `ValueError` unless it has a vocabulary of ids."""
    config = read_json(path)
    model, added = config.get("model"), config.get("added_tokens") or []
    check_ids(path, model.get("vocab") if isinstance(model, dict) else None)
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise ValueError(f"{path} has added_tokens that are no list of objects. Copy it anew.")
    check_ids(path, {str(token.get("content")): token.get("id") for token in added})
    return config


def word_pieces(folder, ids):
    """The content of a `tokenizer.json` for a folder of BERT's that has only `vocab.txt`.

    Args:
        folder: `tokenizer_config.json` in it may say `do_lower_case` and `strip_accents`.
        ids: `{piece: id}`.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    path = pathlib.Path(folder) / "tokenizer_config.json"
    said = read_json(path) if path.exists() else {}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(
        lowercase=said.get("do_lower_case", True), strip_accents=said.get("strip_accents")
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(
        [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if piece in ids]
    )
    return json.loads(made.to_str())
