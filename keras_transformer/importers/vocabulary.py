"""The ids of a vocabulary from elsewhere and ours: which row goes where, and the tokenizers.

Ours are 0 padding, 1 unknown, 2 begin, 3 end. Everything else follows in the order of the origin,
and a SentencePiece model is written anew with its pieces at our ids. It segments as before: pieces,
scores and normalisation are the same, and ids play no part in that. So one `tokenizer.model` is all
that training, artefacts and the text-to-text file need.

Shapes: V vocabulary there, U vocabulary here, D d_model.
"""

import re

import numpy as np

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID

# The output bias of ids that are never to be generated. e^-100 of the others' probability is 0 in
# float32, float16 can hold it, and the loss of a smoothed label stays a sensible number.
NEVER = -100.0
# Our special pieces, at ids 0 to 3.
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
LANGUAGE = re.compile(r">>[^<>\s]+<<")
SPACE = "\u2581"  # how SentencePiece writes a space


class Vocabulary:
    """A vocabulary from elsewhere with our ids.

    Args:
        ids: dict from piece to row in the origin's tables. It has `</s>` and `<unk>`; `<pad>` where
            the origin has padding.
        models: serialised SentencePiece models that segment its text. Their pieces that `ids` lacks
            are unknown tokens to the origin. SentencePiece cannot write two pieces as one id, so
            each gets an id of its own with the unknown token's vector.

    Attributes:
        size: V, how many rows the origin's tables have.
        pieces: list of U str, the piece of each of our ids.
        rows: integers (U,), the origin's row of each of our ids; -1 for padding and begin tokens
            where the origin has none.

    Raises:
        ValueError: the vocabulary lacks `</s>` or `<unk>`.

    Example:

    >>> Vocabulary({"</s>": 0, "<unk>": 1, "a": 2}).rows.tolist()
    [-1, 1, -1, 0, 2]
    """

    def __init__(self, ids, models=()):
        pad, unknown, _, end = SPECIAL_PIECES
        for piece in (unknown, end):
            if piece not in ids:
                raise ValueError(
                    f"The vocabulary of {len(ids):,} pieces lacks {piece!r}, so it is not known "
                    "where a sentence ends and what stands for unknown text. Is it the right file?"
                )
        padding = ids.get(pad, -1)
        rest = sorted(
            (row, piece) for piece, row in ids.items() if piece not in (pad, unknown, end)
        )
        known = set(ids)
        more = [piece for model in models for piece in _segmented(model) if piece not in known]
        self._unknown = list(dict.fromkeys(more))
        self.pieces = [*SPECIAL_PIECES, *(piece for _, piece in rest), *self._unknown]
        rows = [padding, ids[unknown], padding, ids[end], *(row for row, _ in rest)]
        self.size = len(ids)
        self.rows = np.array(rows + [ids[unknown]] * len(self._unknown))

    def table(self, array):
        """Embeddings (V, D) in the order of our ids, (U, D); zeros where the origin has no row."""
        return np.where(self.rows[:, None] < 0, 0.0, array[self.rows]).astype(np.float32)

    def bias(self, array):
        """An output bias (V,) in the order of our ids, (U,); `NEVER` for what is not generated."""
        bias = np.array(array[self.rows], np.float32)
        bias[[PAD_ID, BEGIN_ID]] = NEVER
        bias[len(self.pieces) - len(self._unknown) :] = NEVER
        return bias

    def tokenizer(self, model, writes=True):
        """A `Tokenizer` that segments as a SentencePiece model does and gives our ids.

        Language tokens of the vocabulary, such as ">>fra<<", are one token where they stand in
        front of a word.

        Args:
            model: bytes, one of `models`.
            writes: whether it has to write ids that the model has no piece for, as that of a target
                does: the vocabulary may hold pieces of the source's model.
        """
        from keras_transformer.data.tokenizer import Tokenizer

        proto = _proto(model)
        own = {piece.piece: piece for piece in proto.pieces if piece.type in _used(proto)}
        normalizer = proto.normalizer_spec
        before = SPACE if normalizer.add_dummy_prefix and normalizer.escape_whitespaces else ""
        made = type(proto)()
        for number, name in enumerate(self.pieces):
            if number == UNKNOWN_ID:
                made.pieces.add(piece=name, score=0.0, type=made.SentencePiece.UNKNOWN)
            elif number < len(SPECIAL_PIECES):
                made.pieces.add(piece=name, score=0.0, type=made.SentencePiece.CONTROL)
            elif name in own:
                made.pieces.add().CopyFrom(own[name])
            elif LANGUAGE.fullmatch(name):
                kind = made.SentencePiece.USER_DEFINED
                made.pieces.add(piece=before + name, score=0.0, type=kind)
            elif writes and name not in SPECIAL_PIECES:
                made.pieces.add(piece=name, score=0.0, type=made.SentencePiece.UNUSED)
            else:  # never read and never written; no text spells its name
                kind = made.SentencePiece.CONTROL
                made.pieces.add(piece=f"<{number} {name}>", score=0.0, type=kind)
        del proto.pieces[:]
        proto.pieces.extend(made.pieces)
        spec = proto.trainer_spec
        spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID
        spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL_PIECES
        spec.ClearField("unk_surface")  # as artefacts write it
        spec.vocab_size = len(proto.pieces)
        return Tokenizer(proto.SerializeToString(deterministic=True))


def piece_ids(model):
    """Dict from piece to id of a serialised SentencePiece model, bytes: its own numbering."""
    return {piece.piece: number for number, piece in enumerate(_proto(model).pieces)}


def _proto(model):
    """The parsed `ModelProto`."""
    from google.protobuf.message import DecodeError  # with TensorFlow
    from sentencepiece import sentencepiece_model_pb2

    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    except DecodeError:
        proto = sentencepiece_model_pb2.ModelProto()
    if not proto.pieces:
        raise ValueError(f"These {len(model):,} bytes are no SentencePiece model.")
    return proto


def _used(proto):
    """The types of pieces that text is cut into."""
    kinds = proto.SentencePiece
    return kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE


def _segmented(model):
    """The pieces that a SentencePiece model can cut text into."""
    proto = _proto(model)
    return [piece.piece for piece in proto.pieces if piece.type in _used(proto)]
