"""SentencePiece models with our ids: the text side of a vocabulary that has other ids elsewhere.

A model is written anew with its pieces at our ids. It segments as before: pieces, scores and
normalisation are the same, and ids play no part in that. So one `tokenizer.model` is all that
training, artefacts and the text-to-text file need.

Marian's folders have a vocabulary beside their models, from piece to id. A piece that it lacks is
the unknown token there. SentencePiece cannot write two pieces as one id, so each of them gets an id
of its own, behind all others. Its row is a copy of the unknown token's, see
`vocabulary.row_order`.
"""

import os
import pathlib
import re

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID

# Our special pieces, at ids 0 to 3.
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
LANGUAGE = re.compile(r">>[^<>\s]+<<")
SPACE = "\u2581"  # how SentencePiece writes a space


def read_spm(path: str | os.PathLike) -> bytes:
    """A serialised SentencePiece model; raises `ValueError` unless the file holds one."""
    model = pathlib.Path(path).read_bytes()
    try:
        _proto(model)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read. {error}") from error
    return model


def piece_ids(model):
    """Dict from piece to id of a serialised SentencePiece model, bytes: its own numbering."""
    return {piece.piece: number for number, piece in enumerate(_proto(model).pieces)}


def unknown_id(model):
    """The id of the unknown piece of a serialised SentencePiece model, which each has."""
    proto = _proto(model)
    kinds = [piece.type for piece in proto.pieces]
    return kinds.index(proto.SentencePiece.UNKNOWN)


def unknown_pieces(ids, *models):
    """Pieces that SentencePiece models cut text into and that a vocabulary `{piece: id}` lacks."""
    cut = [piece for model in models for piece in _cut_pieces(_proto(model))]
    return [piece for piece in dict.fromkeys(cut) if piece not in ids]


def piece_names(ids, order, unknown=()):
    """The piece at each of our ids, list of V str.

    Args:
        ids: dict from piece to the origin's id.
        order: the origin's id of each of our rows, see `vocabulary.row_order`.
        unknown: what `unknown_pieces` gives; `order` ends with as many copies.

    Example:

    >>> from keras_transformer.importers.vocabulary import row_order
    >>> order = row_order(3, pad=None, unknown=1, begin=None, end=0)
    >>> piece_names({"</s>": 0, "<unk>": 1, "a": 2}, order)
    ['<pad>', '<unk>', '<s>', '</s>', 'a']
    """
    piece_of = {number: piece for piece, number in ids.items()}
    known = order[len(SPECIAL_PIECES) : len(order) - len(unknown)].tolist()
    return [*SPECIAL_PIECES, *(piece_of.get(number, f"<{number}>") for number in known), *unknown]


def renumbered(model, names, writes=True):
    """A `Tokenizer` that segments as a SentencePiece model does and gives our ids.

    Language tokens of the vocabulary, such as ">>fra<<", are one token where they begin a text or
    follow a space; a space must follow them, too.

    Args:
        model: serialised SentencePiece model, bytes.
        names: what `piece_names` gives. It holds every piece that the model cuts text into.
        writes: whether pieces that the model does not have are to be written, as a target's are:
            the vocabulary may hold pieces of the source's model.

    Raises:
        ValueError: the bytes are no SentencePiece model, or it has pieces beyond `names`.
    """
    from keras_transformer.text.tokenizer import Tokenizer

    missing = unknown_pieces(dict.fromkeys(names), model)
    if missing:
        raise ValueError(f"The vocabulary lacks {len(missing)} pieces of the model: {missing[:5]}.")
    proto = _proto(model)
    own = _cut_pieces(proto)
    prefix = SPACE if proto.normalizer_spec.add_dummy_prefix else ""
    pieces = [
        _piece(proto.SentencePiece, number, name, own, prefix, writes)
        for number, name in enumerate(names)
    ]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    spec = proto.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL_PIECES
    spec.ClearField("unk_surface")  # as artefacts write it
    spec.vocab_size = len(pieces)
    return Tokenizer(proto.SerializeToString(deterministic=True))


def published(model):
    """A model of ours as Marian's folders have it: the inverse of `renumbered`.

    Args:
        model: serialised SentencePiece model, bytes, as a `Tokenizer` has it.

    Returns:
        A pair. Names: the piece at each id as a vocabulary has it, `None` where the model neither
        reads nor writes one. And the model without language tokens, which are in the vocabulary
        only: whoever reads such folders cuts them off first.
    """
    proto, names = _proto(model), []
    silent = (proto.SentencePiece.CONTROL, proto.SentencePiece.UNKNOWN)
    for piece in proto.pieces:
        name = piece.piece.removeprefix(SPACE)
        if LANGUAGE.fullmatch(name):
            piece.piece, piece.type = name, proto.SentencePiece.CONTROL
            names.append(name)
        else:
            names.append(None if piece.type in silent else piece.piece)
    return names, proto.SerializeToString(deterministic=True)


def special_id(ids, piece):
    """The id of a special piece that every vocabulary must have; raises `ValueError` if not."""
    if piece not in ids:
        raise ValueError(
            f"The vocabulary of {len(ids):,} pieces lacks {piece!r}, so it is not known where a "
            "sentence ends and what stands for unknown text. Is it the right file?"
        )
    return ids[piece]


def _piece(kind, number, name, own, prefix, writes):
    """The piece at one of our ids."""
    if number == UNKNOWN_ID:
        return kind(piece=name, score=0.0, type=kind.UNKNOWN)
    if number in (PAD_ID, BEGIN_ID, END_ID):
        return kind(piece=name, score=0.0, type=kind.CONTROL)
    if name in own:
        return own[name]
    if LANGUAGE.fullmatch(name):
        return kind(piece=prefix + name, score=0.0, type=kind.USER_DEFINED)
    if writes and name not in SPECIAL_PIECES:
        return kind(piece=name, score=0.0, type=kind.UNUSED)
    # Never read and never written. No other piece may have its name.
    return kind(piece=f"<{number} {name}>", score=0.0, type=kind.CONTROL)


def _cut_pieces(proto):
    """The pieces that a model can cut text into, by name."""
    kinds = proto.SentencePiece
    used = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
    return {p.piece: p for p in proto.pieces if p.type in used}


def _proto(model):
    """The parsed `ModelProto`."""
    from google.protobuf.message import DecodeError  # comes with TensorFlow
    from sentencepiece import sentencepiece_model_pb2

    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    except DecodeError:
        proto = sentencepiece_model_pb2.ModelProto()
    if not proto.pieces:
        raise ValueError(f"These {len(model):,} bytes are no SentencePiece model.")
    return proto
