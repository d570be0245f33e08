"""Nodes around a model of ids: from texts to ids, and from ids to texts.

Text goes through the tokenizer's own operator. The way back needs none: pieces are looked up in a
table of strings and joined. Byte pieces are single bytes there, so that joining them gives back the
character that they spell.

Shapes: B texts, N tokens of all of them, S of the longest, W hypotheses, T tokens of each.
"""

import numpy as np
import sentencepiece
from onnx import TensorProto, helper, numpy_helper

from keras_transformer.export.artefact import signature
from keras_transformer.export.text_bytes import add_broken_bytes

# The domain of onnxruntime-extensions' operators.
CONTRIB = "ai.onnx.contrib"
# How SentencePiece writes a space, and the unknown token.
SPACE, UNKNOWN = "\u2581", " \u2047 "


class Nodes:
    """Collects nodes and constants under names that no model uses; each is known by its name."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, array):
        """A constant of numbers or booleans."""
        name = f"text/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def string(self, text):
        """A constant with one string."""
        name = f"text/constant_{len(self.constants)}"
        self.constants.append(helper.make_tensor(name, TensorProto.STRING, [1], [text.encode()]))
        return name

    def add(self, op_type, *inputs, domain="", outputs=1, **attributes):
        """A node; returns the name of its output, or a list of them."""
        names = [f"text/{op_type}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def substitute(self, text, regex, by):
        """Texts in which every match of a regular expression is replaced."""
        return self.add(
            "StringRegexReplace",
            text,
            self.string(regex),
            self.string(by),
            domain=CONTRIB,
            global_replace=1,
        )


def add_encoding(made, tokenizer, task):
    """Nodes from `text` to padded ids (B, S), and to whether it is blank (B, 1); their names.

    The tokenizer's operator gives the tokens of all texts in one row, and where each text begins.
    Column s of text b is the token at `first[b] + s`, as far as the text has so many.
    """
    generate = task == "generate"
    flags = [np.array([flag]) for flag in (generate, not generate, False, False)]
    tokens, starts = made.add(
        "SentencepieceTokenizer",
        signature.TEXT,
        made.constant(np.array([0], np.int64)),
        made.constant(np.array([0], np.float32)),
        *map(made.constant, flags),
        domain=CONTRIB,
        outputs=2,
        model=tokenizer.model,
    )  # (N,), (B + 1,): where each text begins, and the end
    zero, one = made.constant(np.array([0])), made.constant(np.array([1]))
    first = made.add("Slice", starts, zero, made.constant(np.array([-1])), zero)  # (B,)
    end = made.add("Slice", starts, one, made.constant(np.array([2**31 - 1])), zero)  # (B,)
    count = made.add("Sub", end, first)
    longest = made.add("ReduceMax", count, keepdims=0)
    scalars = [made.constant(np.array(number)) for number in (0, 1)]
    column = made.add("Unsqueeze", made.add("Range", scalars[0], longest, scalars[1]), zero)
    index = made.add("Add", made.add("Unsqueeze", first, one), column)  # (B, S)
    last = made.add("Sub", made.add("Size", tokens), scalars[1])
    found = made.add("Gather", tokens, made.add("Min", index, last))  # (B, S)
    there = made.add("Less", column, made.add("Unsqueeze", count, one))
    pad = made.constant(np.array(signature.SPECIAL_IDS["pad"], np.int32))
    rest = made.substitute(signature.TEXT, f"^{signature.BLANK}$", "")
    length = made.add("StringLength", rest, domain=CONTRIB)  # (B,)
    blank = made.add(
        "Or", made.add("Equal", length, scalars[0]), made.add("Equal", count, scalars[1])
    )
    return made.add("Where", there, found, pad), made.add("Unsqueeze", blank, one)


def add_decoding(made, tokenizer, blank, vocab_size):
    """Nodes from `token_ids` (B, W, T) to strings and scores (B, W); returns their names.

    Each id is looked up in the table of `pieces`, and the pieces of a hypothesis are joined.
    """
    found = pieces(tokenizer, vocab_size)
    table = helper.make_tensor("text/pieces", TensorProto.STRING, [len(found)], found)
    made.constants.append(table)
    words = made.add("Gather", table.name, signature.TOKEN_IDS)  # (B, W, T)
    broken = add_broken_bytes(made, tokenizer, vocab_size)
    words = made.add("Where", broken, made.string(signature.REPLACEMENT), words)
    text = made.add(
        "StringJoin", words, made.string(""), made.constant(np.array([2])), domain=CONTRIB
    )
    text = made.substitute(text, f"^{SPACE}", "")
    text = made.substitute(text, SPACE, " ")
    # Blank text has one empty hypothesis of score 0 and no other.
    beam = made.add("Shape", "text/scores", start=1)
    zero, one = (made.constant(np.array(number)) for number in (0, 1))
    others = made.add("Range", zero, made.add("Squeeze", beam), one)  # (W,)
    nothing = made.add(
        "Where",
        made.add("Less", others, one),
        made.constant(np.array(0, np.float32)),
        made.constant(np.array(-np.inf, np.float32)),
    )
    return (
        made.add("Where", blank, made.string(""), text),
        made.add("Where", blank, nothing, "text/scores"),
    )


def pieces(tokenizer, vocab_size):
    """What each id stands for, as bytes.

    Nothing for special tokens, one byte for a byte piece, U+FFFD for that of NUL, which would end
    the text, and the unknown token's text for ids that the tokenizer lacks.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    found = []
    for token in range(processor.get_piece_size()):
        piece = processor.id_to_piece(token)
        if processor.is_unknown(token):
            found.append(UNKNOWN.encode())
        elif processor.is_control(token):
            found.append(b"")
        elif processor.is_byte(token):
            byte = bytes([int(piece[3:-1], 16)])  # "<0x2A>"
            found.append(signature.REPLACEMENT.encode() if byte == b"\0" else byte)
        else:
            found.append(piece.encode())
    return found + [UNKNOWN.encode()] * (vocab_size - len(found))
