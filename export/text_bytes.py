"""Byte pieces that spell no character, found inside the ONNX graph.

SentencePiece writes a character that it has no piece for as the bytes of its UTF-8. A model may put
such pieces in any order. Those that spell no character become U+FFFD, one for each byte, which is
what the tokenizer itself makes of them.

UTF-8 has characters of one byte up to 0x7F, and characters of a first byte, which says how many
follow (one, two or three), and as many bytes from 0x80 to 0xBF. The second byte has narrower bounds
after four of the first ones.

Shapes: B texts, W hypotheses, T tokens of each.
"""

import numpy as np
import sentencepiece
from onnx import TensorProto

from keras_transformer.export.artefact import signature

# First bytes with as many following ones: at least one, at least two, and three.
FIRST_BYTES = ((0xC2, 0xF4), (0xE0, 0xF4), (0xF0, 0xF4))
# Bounds of the second byte, where they are not those of all following ones.
SECOND_BYTES = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
FOLLOWING = (0x80, 0xBF)
# A character has at most so many bytes beside the one that is looked at.
REACH = 3


def byte_table(tokenizer, vocab_size):
    """For each id: its byte or -1, how many bytes must follow it, and bounds of the next one."""
    for byte in _byte_values(tokenizer, vocab_size):
        need = sum(low <= byte <= high for low, high in FIRST_BYTES)
        yield (byte, need, *SECOND_BYTES.get(byte, FOLLOWING))


def _byte_values(tokenizer, vocab_size):
    """The byte that each id stands for, -1 where it is no byte piece."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    for token in range(processor.get_piece_size()):
        yield int(processor.id_to_piece(token)[3:-1], 16) if processor.is_byte(token) else -1
    yield from [-1] * (vocab_size - processor.get_piece_size())


def add_broken_bytes(made, tokenizer, vocab_size):
    """Adds nodes that find the byte pieces of no character.

    Args:
        made: `text_graph.Nodes` to add to.
        tokenizer: `Tokenizer` of the model.
        vocab_size: how many ids the model may write.

    Returns:
        The name of a boolean tensor (B, W, T), like `token_ids`.
    """
    value, need, low, high = (
        made.constant(np.array(column, np.int64))
        for column in zip(*byte_table(tokenizer, vocab_size), strict=True)
    )
    ids = made.add("Cast", signature.TOKEN_IDS, to=TensorProto.INT64)
    ids = made.add("Pad", ids, made.constant(np.array([0, 0, REACH, 0, 0, REACH])))
    needs, values = made.add("Gather", need, ids), made.add("Gather", value, ids)
    here = [_shifted(made, values, shift) for shift in range(REACH + 1)]
    mine, first = _shifted(made, needs, 0), _shifted(made, ids, 0)
    bounds = made.add("Gather", low, first), made.add("Gather", high, first)
    # A character begins here if the byte is a first one and those that it needs follow.
    fits, complete = _within(made, here[1], *bounds), []
    for more in (1, 2, 3):
        if more > 1:
            bounds = (made.constant(np.array(bound)) for bound in FOLLOWING)
            fits = made.add("And", fits, _within(made, here[more], *bounds))
        needed = made.add("Equal", mine, made.constant(np.array(more)))
        complete.append(made.add("And", needed, fits))
    begins = made.add("Or", made.add("Or", *complete[:2]), complete[2])
    good = _covered(made, begins, mine)
    multiple = made.add("GreaterOrEqual", here[0], made.constant(np.array(FOLLOWING[0])))
    return made.add("And", multiple, made.add("Not", good))


def _covered(made, begins, need):
    """Whether a token is part of a character: begins one, or one began up to three before it."""
    length = made.add("Mul", made.add("Cast", begins, to=TensorProto.INT64), need)
    length = made.add("Pad", length, made.constant(np.array([0, 0, REACH, 0, 0, REACH])))
    covered = begins
    for shift in (1, 2, 3):
        before = _shifted(made, length, -shift)
        inside = made.add("GreaterOrEqual", before, made.constant(np.array(shift)))
        covered = made.add("Or", covered, inside)
    return covered


def _shifted(made, name, shift):
    """`name`, which is padded by `REACH` on either side, of the tokens `shift` places on."""
    start = made.constant(np.array([REACH + shift]))
    # The padding at the far end stays out: 0 would mean an empty slice.
    end = made.constant(np.array([shift - REACH if shift < REACH else 2**31 - 1]))
    return made.add("Slice", name, start, end, made.constant(np.array([2])))


def _within(made, values, lowest, highest):
    """Whether values are within bounds, both of them included."""
    at_least = made.add("GreaterOrEqual", values, lowest)
    return made.add("And", at_least, made.add("LessOrEqual", values, highest))
