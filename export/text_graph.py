"""ONNX nodes around a model of ids: from texts to ids, and from ids to texts.

SentencePiece's operator encodes texts. Decoding looks pieces up in a table of strings and joins
them. A byte piece is a single byte there, so joined byte pieces spell their character.

SentencePiece writes a character without a piece as the bytes of its UTF-8 encoding, but a model may
write byte pieces in any order. Byte pieces that spell no character become U+FFFD, one for each
byte, as in the tokenizer.

UTF-8 has characters of one byte up to 0x7F. Other characters have a first byte, which determines
how many bytes follow (one, two or three), and following bytes from 0x80 to 0xBF. After four of the
first bytes the second byte has narrower bounds.

Shapes: B texts, N tokens of all texts, S of the longest, W hypotheses, T tokens of a hypothesis.
"""

from typing import Any, TypeAlias

import numpy as np
import sentencepiece
from onnx import TensorProto, helper, numpy_helper

from keras_transformer.export.artefact import signature
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.types import Array

# The domain of onnxruntime-extensions' operators.
CONTRIB = "ai.onnx.contrib"
# SentencePiece's space, and its text for the unknown token.
SPACE, UNKNOWN = "\u2581", " \u2047 "
# First bytes that need at least one following byte, at least two, and three.
FIRST_BYTES = ((0xC2, 0xF4), (0xE0, 0xF4), (0xF0, 0xF4))
# Bounds of the second byte after these first bytes, and of all other following bytes.
SECOND_BYTES = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
FOLLOWING = (0x80, 0xBF)
# The most bytes of a character before or after a given one.
REACH = 3

# The name of a value in the graph, or a constant.
Value: TypeAlias = str | int | Array


class Nodes:
    """Collects nodes and constants.

    Args:
        prefix: prefix of all names, which no model uses.

    Attributes:
        nodes: list of `onnx.NodeProto`, in order.
        constants: list of `onnx.TensorProto`.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def string(self, *texts: bytes | str) -> str:
        """Adds a constant of strings; returns its name."""
        return self._constant(np.array(texts, object))

    def _name(self, value: Value) -> str:
        """Returns the name of a value. Integers and arrays become constants."""
        return value if isinstance(value, str) else self._constant(np.asarray(value))

    def _constant(self, array: Array) -> str:
        name = f"{self.prefix}/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op_type: str, *inputs: Value, **attributes: Any) -> str:
        """Adds a node with one output; returns the name of the output."""
        (name,) = self.add_several(1, op_type, *inputs, **attributes)
        return name

    def add_several(self, count: int, op_type: str, *inputs: Value, **attributes: Any) -> list[str]:
        """Adds a node with `count` outputs; returns their names."""
        names = [f"{self.prefix}/{op_type}_{len(self.nodes)}_{i}" for i in range(count)]
        inputs = [self._name(value) for value in inputs]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names

    def substitute(self, text: str, regex: str, by: str) -> str:
        """Adds a node that replaces every match of a regular expression."""
        strings = self.string(regex), self.string(by)
        return self.add("StringRegexReplace", text, *strings, domain=CONTRIB, global_replace=1)


def add_encoding(nodes: Nodes, tokenizer: Tokenizer, generate: bool) -> tuple[str, str]:
    """Adds nodes from `text` (B,) to padded ids (B, S), and to whether a text is blank (B, 1).

    The tokenizer's operator gives the tokens of all texts in one row, and where each text begins.
    Column s of text b is the token at `first[b] + s`, if the text is long enough.

    Args:
        nodes: `Nodes` to add to.
        tokenizer: `Tokenizer` of the text.
        generate: whether ids start with the begin token; else they end with the end token.

    Returns:
        The names of both values.
    """
    flags = [np.array([flag]) for flag in (generate, not generate, False, False)]
    inputs = signature.TEXT, np.array([0]), np.array([0], np.float32), *flags
    options = {"domain": CONTRIB, "model": tokenizer.model}
    # tokens (N,); starts (B + 1,): where each text begins, and the end of the last one
    tokens, starts = nodes.add_several(2, "SentencepieceTokenizer", *inputs, **options)
    zero, one = np.array([0]), np.array([1])
    first = nodes.add("Slice", starts, zero, np.array([-1]), zero)  # (B,)
    end = nodes.add("Slice", starts, one, np.array([2**31 - 1]), zero)  # (B,)
    count = nodes.add("Sub", end, first)
    longest = nodes.add("ReduceMax", count, keepdims=0)
    column = nodes.add("Unsqueeze", nodes.add("Range", 0, longest, 1), zero)
    index = nodes.add("Add", nodes.add("Unsqueeze", first, one), column)  # (B, S)
    last = nodes.add("Sub", nodes.add("Size", tokens), 1)
    found = nodes.add("Gather", tokens, nodes.add("Min", index, last))  # (B, S)
    exists = nodes.add("Less", column, nodes.add("Unsqueeze", count, one))
    ids = nodes.add("Where", exists, found, np.array(signature.SPECIAL_IDS["pad"], np.int32))
    rest = nodes.substitute(signature.TEXT, f"^{signature.BLANK}$", "")
    length = nodes.add("StringLength", rest, domain=CONTRIB)  # (B,)
    blank = nodes.add("Or", nodes.add("Equal", length, 0), nodes.add("Equal", count, 1))
    return ids, nodes.add("Unsqueeze", blank, one)


def add_decoding(
    nodes: Nodes, tokenizer: Tokenizer, blank: str, scores: str, vocab_size: int
) -> tuple[str, str]:
    """Adds nodes from `token_ids` (B, W, T) to strings and scores (B, W).

    A blank text gets one empty hypothesis of score 0 and no other.

    Args:
        nodes: `Nodes` to add to.
        tokenizer: `Tokenizer` of the target.
        blank: name of a boolean (B, 1), whether a text is blank.
        scores: name of the model's scores (B, W).
        vocab_size: how many ids the model may write.

    Returns:
        The names of both values.
    """
    table = nodes.string(*pieces(tokenizer, vocab_size))
    # One more text and token of padding: StringJoin crashes if there is none.
    ids = nodes.add("Cast", signature.TOKEN_IDS, to=TensorProto.INT64)
    ids = nodes.add("Pad", ids, np.array([0, 0, 0, 1, 0, 1]))
    words = nodes.add("Gather", table, ids)  # (B + 1, W, T + 1)
    broken = _add_broken_bytes(nodes, tokenizer, vocab_size, ids)
    words = nodes.add("Where", broken, nodes.string(signature.REPLACEMENT), words)
    text = nodes.add("StringJoin", words, nodes.string(""), np.array([2]), domain=CONTRIB)
    text = nodes.add("Slice", text, np.array([0]), np.array([-1]), np.array([0]))  # (B, W)
    text = nodes.substitute(nodes.substitute(text, f"^{SPACE}", ""), SPACE, " ")
    width = nodes.add("Squeeze", nodes.add("Shape", scores, start=1))
    first = nodes.add("Less", nodes.add("Range", 0, width, 1), 1)  # (W,)
    nothing = nodes.add("Where", first, np.float32(0), np.float32(-np.inf))
    return (
        nodes.add("Where", blank, nodes.string(""), text),
        nodes.add("Where", blank, nothing, scores),
    )


def pieces(tokenizer: Tokenizer, vocab_size: int) -> list[bytes]:
    """Returns the bytes of each id.

    Special tokens are empty. A byte piece is its byte; NUL would end the text, so it becomes
    U+FFFD. Ids that the tokenizer lacks are written like the unknown token.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    found = []
    for token, byte in enumerate(_byte_values(tokenizer, vocab_size)):
        if token >= processor.get_piece_size() or processor.is_unknown(token):
            found.append(UNKNOWN.encode())
        elif processor.is_control(token):
            found.append(b"")
        elif byte < 0:
            found.append(processor.id_to_piece(token).encode())
        else:
            found.append(bytes([byte]) if byte else signature.REPLACEMENT.encode())
    return found


def _byte_values(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Returns the byte of each id, or -1 if it is not a byte piece."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    values = [-1] * vocab_size
    for token in filter(processor.is_byte, range(processor.get_piece_size())):
        values[token] = int(processor.id_to_piece(token)[3:-1], 16)  # "<0x2A>"
    return values


def byte_table(tokenizer: Tokenizer, vocab_size: int) -> list[tuple[int, int, int, int]]:
    """Returns each id's byte or -1, how many bytes must follow, and bounds of the next byte."""
    return [
        (
            byte,
            sum(low <= byte <= high for low, high in FIRST_BYTES),
            *SECOND_BYTES.get(byte, FOLLOWING),
        )
        for byte in _byte_values(tokenizer, vocab_size)
    ]


def _add_broken_bytes(nodes: Nodes, tokenizer: Tokenizer, vocab_size: int, ids: str) -> str:
    """Adds nodes that find invalid byte pieces; returns the name of a boolean (B, W, T).

    `ids` is the name of int64 ids (B, W, T).
    """
    value, need, low, high = np.array(byte_table(tokenizer, vocab_size)).T
    ids = nodes.add("Pad", ids, np.array([0, 0, REACH, 0, 0, REACH]))
    values = nodes.add("Gather", value, ids)
    byte, *following = (_shifted(nodes, values, shift) for shift in range(REACH + 1))
    needed = _shifted(nodes, nodes.add("Gather", need, ids), 0)
    # A character begins at a first byte that is followed by all the bytes that it needs.
    first = _shifted(nodes, ids, 0)
    bounds = nodes.add("Gather", low, first), nodes.add("Gather", high, first)
    fits = _within(nodes, following[0], *bounds)
    begins = nodes.add("And", nodes.add("Equal", needed, 1), fits)
    for count in (2, 3):
        fits = nodes.add("And", fits, _within(nodes, following[count - 1], *FOLLOWING))
        complete = nodes.add("And", nodes.add("Equal", needed, count), fits)
        begins = nodes.add("Or", begins, complete)
    # A byte belongs to a character that begins there or up to three bytes before.
    length = nodes.add("Mul", nodes.add("Cast", begins, to=TensorProto.INT64), needed)
    length = nodes.add("Pad", length, np.array([0, 0, REACH, 0, 0, REACH]))
    covered = begins
    for shift in (1, 2, 3):
        inside = nodes.add("GreaterOrEqual", _shifted(nodes, length, -shift), shift)
        covered = nodes.add("Or", covered, inside)
    multiple = nodes.add("GreaterOrEqual", byte, FOLLOWING[0])
    return nodes.add("And", multiple, nodes.add("Not", covered))


def _shifted(nodes: Nodes, name: str, shift: int) -> str:
    """Returns the values `shift` tokens later; `name` is padded by `REACH` tokens on both sides."""
    start = np.array([REACH + shift])
    end = np.array([shift - REACH if shift < REACH else 2**31 - 1])  # 0 would be an empty slice
    return nodes.add("Slice", name, start, end, np.array([2]))


def _within(nodes: Nodes, values: str, lowest: Value, highest: Value) -> str:
    """Returns whether values are within inclusive bounds."""
    at_least = nodes.add("GreaterOrEqual", values, lowest)
    return nodes.add("And", at_least, nodes.add("LessOrEqual", values, highest))
