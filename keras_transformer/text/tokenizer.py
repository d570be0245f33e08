"""Converts text to token ids and back, the same in Python and inside TensorFlow graphs.

Importing this module needs SentencePiece only; TensorFlow is imported by the methods that use it.

Ids: 0 pad, 1 unknown, 2 begin, 3 end. Shapes: `B` batch, `T` tokens of the longest sentence.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import numpy as np
import sentencepiece

from keras_transformer.files import whole_file
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from keras_transformer.text.corpora import checked_strings, refuse_paths
from keras_transformer.text.sentencepiece_model import graph_functions, train_model
from keras_transformer.text.tokenizer_sampling import Sampler
from keras_transformer.text.vocabularies import digest_of
from keras_transformer.types import Array, Ids, StrPath, Tensor

# Greatest number of lines that are encoded one by one. For a list SentencePiece starts threads,
# which takes 150 us; a line takes 5 us.
FEW = 16


class Tokenizer:
    """Subword tokenizer: one SentencePiece model, held as bytes, stored as one `.model` file.

    The paper uses byte-pair encoding and word pieces (section 5.1). One vocabulary for source and
    target lets both embeddings and the output share a matrix (section 3.4). `encode` adds no begin
    and end tokens: the data pipeline and the search add them.

    With the defaults (`normalization="identity"`, `byte_fallback=True`) `decode(encode(text))` is
    `text`, including emoji, control characters and runs of spaces. Characters that were not in the
    training text become bytes. The only exception is U+2581 "▁", SentencePiece's space, which
    becomes a space.

    The methods for Python (`encode`, `decode`) and for graphs (`tf_encode`, `tf_decode`) give the
    same ids and text. Tokenizers can be pickled and copied. They are equal if their models are.

    Args:
        model: bytes, a serialised SentencePiece model whose ids 0-3 are pad, unknown, begin and
            end. Models come from `Tokenizer.train` or `Tokenizer.load`.

    Raises:
        TypeError: if `model` is not bytes.
        ValueError: if `model` is not a SentencePiece model, or has other ids of special tokens.

    Example:

    >>> tokenizer = Tokenizer.train(["a man 's hat , red ."], vocab_size=273)
    >>> tokenizer.decode(tokenizer.encode("a red hat 😀"))
    'a red hat 😀'
    """

    def __init__(self, model: bytes) -> None:
        if not isinstance(model, bytes):
            raise TypeError(
                f"Tokenizer expects the bytes of a SentencePiece model, got "
                f"{type(model).__name__}. Read a .model file with `Tokenizer.load(path)`."
            )
        processor = sentencepiece.SentencePieceProcessor()
        try:
            loaded = bool(model) and processor.LoadFromSerializedProto(model)
        except (RuntimeError, OSError, UnicodeDecodeError):  # the last if its message is no text
            loaded = False
        if not loaded:
            raise ValueError(
                f"these {len(model)} bytes are not a SentencePiece model; expected the content of "
                "a .model file written by `Tokenizer.save`."
            )
        found = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        expected = (PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID)
        if found != expected:
            raise ValueError(
                f"expected a SentencePiece model with pad, unknown, begin, end = {expected}, got "
                f"{found}. Train it with `Tokenizer.train`, or with pad_id=0, unk_id=1, bos_id=2, "
                "eos_id=3."
            )
        self._model = model
        self._processor = processor

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab_size: int = 8000,
        *,
        model_type: str = "unigram",
        normalization: str = "identity",
        byte_fallback: bool = True,
        character_coverage: float = 1.0,
        hard_vocab_limit: bool = True,
        symbols: Sequence[str] = (),
    ) -> "Tokenizer":
        """Trains a tokenizer on an iterable of strings, source and target sentences together.

        The result depends on the lines, their order and the arguments only.

        Args:
            lines: iterable of str, one sentence each. Empty lines are ignored.
            vocab_size: int, number of ids, including the four special ones and the 256 bytes. A
                good start for pieces is 260, the different characters of the text, and a piece for
                every 2,000 characters of text, at most 32,000 in all. More pieces would be too
                rare to learn. Defaults to 8000, which suits 12 million characters.
            model_type: `"unigram"` (default; can sample segmentations by their probability),
                `"bpe"` (samples by dropping merges), `"char"` (one id per character) or `"word"`
                (one id per string between two spaces). The last two keep the most frequent ones if
                there are more than `vocab_size` allows.
            normalization: SentencePiece's rule: `"identity"` (default) leaves text as it is;
                `"nmt_nfkc"`, `"nfkc"`, `"nmt_nfkc_cf"` and `"nfkc_cf"` fold compatibility
                characters (`_cf`: and case) and collapse spaces, so text does not round-trip.
            byte_fallback: bool, whether characters without a piece become UTF-8 bytes (256 ids).
                With `model_type="word"` there are no bytes: other words are the unknown id.
            character_coverage: float, share of the characters that get a piece.
            hard_vocab_limit: bool. If False, a short text may give fewer ids than `vocab_size`
                (unigram, word; char always does).
            symbols: texts that are one piece wherever they occur, such as the keys of JSON. With
                " ", each space is a piece, so that a word has the same pieces after a space and
                after a quotation mark. Defaults to none.

        Returns:
            A `Tokenizer`.

        Raises:
            TypeError: if `lines` is one string, or holds something that is not a string.
            ValueError: if there is no text, `vocab_size` does not fit the text (the message names
                the size by the rule above), or a symbol is empty, repeated or a special token.
        """
        if not isinstance(lines, str | bytes):
            lines = list(lines)
            refuse_paths(lines, "lines")
        model = train_model(
            checked_strings(lines, "lines"),
            vocab_size,
            model_type=model_type,
            normalization=normalization,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            hard_vocab_limit=hard_vocab_limit,
            symbols=checked_strings(symbols, "symbols"),
        )
        return cls(model)

    @classmethod
    def load(cls, path: StrPath) -> "Tokenizer":
        """Reads a tokenizer from a `.model` file.

        Raises:
            OSError: the file cannot be read.
            ValueError: it holds no SentencePiece model, or one with other special ids.
        """
        with open(path, "rb") as file:
            model = file.read()
        try:
            return cls(model)
        except ValueError as error:
            raise ValueError(f"{path} cannot be read as a tokenizer: {error}") from error

    def save(self, path: StrPath) -> None:
        """Writes one file, atomically. Its usual name is `NAME.model`."""
        with whole_file(path) as aside:
            aside.write_bytes(self._model)

    @property
    def model(self) -> bytes:
        """The serialised SentencePiece model, bytes."""
        return self._model

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return self._processor.get_piece_size()

    @property
    def pieces(self) -> list[str]:
        """The pieces in the order of their ids; SentencePiece's "▁" stands for a space."""
        return [self._processor.id_to_piece(i) for i in range(self.vocab_size)]

    @property
    def piece_bytes(self) -> list[bytes]:
        """The UTF-8 bytes that each id adds to a text; none for special ids."""
        get = self._processor
        return [
            b""
            if get.is_control(i) or get.is_unknown(i) or get.is_unused(i)
            else bytes([int(piece[3:5], 16)])  # such as <0x0A>
            if get.is_byte(i)
            else piece.replace("\u2581", " ").encode()
            for i, piece in enumerate(self.pieces)
        ]

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the pieces. Tokenizers with the same pieces for all ids have the same."""
        return digest_of(self.pieces)

    @property
    def word_starts(self) -> Array:
        """Whether each piece begins a word, with SentencePiece's "▁": bool (vocab_size,)."""
        return np.array([piece.startswith("\u2581") for piece in self.pieces])

    @overload
    def encode(
        self, text: str, sample: bool = ..., alpha: float = ..., seed: int | None = ...
    ) -> list[int]: ...

    @overload
    def encode(
        self, text: Sequence[str], sample: bool = ..., alpha: float = ..., seed: int | None = ...
    ) -> list[list[int]]: ...

    def encode(
        self,
        text: str | Sequence[str],
        sample: bool = False,
        alpha: float = 0.2,
        seed: int | None = None,
    ) -> list[int] | list[list[int]]:
        """Turns text into ids, without begin and end tokens.

        Args:
            text: str or sequence of str.
            sample: bool. If True, draws a segmentation of each text at random (subword
                regularisation) instead of taking the best one.
            alpha: float, at least 0. A unigram model draws from all segmentations of a text, with
                probabilities proportional to P^alpha, where P is the product of the probabilities
                of the pieces. A smaller alpha gives more variety: on Multi30k 0.5, 0.2 and 0.1
                make sentences 1.04, 1.3 and 1.9 times as long. A BPE model leaves out each merge
                with probability `alpha` (BPE dropout).
            seed: int or None. The draw for text number i of a list depends on (seed, i, text)
                only, in every process and on every machine. None gives a new draw each time.

        Returns:
            List of int for a string; list of such lists for a sequence.

        Raises:
            TypeError: if `text` holds something that is not a string.
            ValueError: if a string holds half a surrogate pair, which has no UTF-8 form; with
                `sample` also if `alpha` is negative or the model is neither unigram nor BPE.
        """
        single = isinstance(text, str)
        lines = checked_strings([text] if single else text, "text")
        if sample:
            if not 0 <= alpha < math.inf:
                raise ValueError(f"alpha must be a number of at least 0, got {alpha!r}.")
            ids = self._sampler.encode(lines, alpha, seed)
        elif len(lines) <= FEW:
            ids = [self._processor.encode(line) for line in lines]
        else:
            ids = self._processor.encode(lines)
        return ids[0] if single else ids

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encodes a text and finds the span of each piece in it.

        Args:
            text: str.

        Returns:
            Two lists with one entry per piece: its id, and its span, a pair of int. The text of the
            piece is `text[start:end]`, including a space before a word. If a character becomes
            several bytes, the span of the last byte covers it; the others are empty.

        Raises:
            TypeError, ValueError: see `encode`.

        Example:

        >>> tokenizer = Tokenizer.train(["a red hat"], 300, hard_vocab_limit=False)
        >>> ids, spans = tokenizer.encode_with_spans("a hat")
        >>> ids == tokenizer.encode("a hat"), spans[-1][1]
        (True, 5)
        """
        (text,) = checked_strings([text], "text")
        pieces = self._processor.encode(text, return_type="proto").pieces
        # SentencePiece counts bytes. Entry n is the number of characters that begin before byte n.
        begins = (byte & 0xC0 != 0x80 for byte in text.encode("utf-8"))
        characters = list(itertools.accumulate(begins, initial=0))
        spans = [(characters[piece.begin], characters[piece.end]) for piece in pieces]
        return [piece.id for piece in pieces], spans

    def decode(self, ids: Iterable[Any] | Ids) -> Any:
        """Turns ids into text, up to the first end token; leaves out padding and begin tokens.

        Args:
            ids: sequence of int for one sentence, or sequence of such sequences; lists, or an
                integer array or tensor of shape (T,) or (B, T).

        Returns:
            str for one sentence; list of str for several. Bytes that are not UTF-8 become U+FFFD,
            the unknown id becomes " ⁇ ".

        Raises:
            ValueError: if an id is not within the vocabulary.
        """
        rows, single = decoded_rows(ids, self.vocab_size)
        if single:
            return self._processor.decode(rows[0])
        return self._processor.decode(rows) if rows else []

    def tf_encode(self, text: Tensor) -> Tensor:
        """Same as `encode` in graphs: strings (B,) -> ragged int32 (B, T); scalar -> int32 (T,).

        Works eagerly, in `tf.data` and in SavedModels. The graph contains the model's bytes, so a
        SavedModel needs no file beside it. Import `tensorflow_text`, which has the operations,
        before you load such a SavedModel.
        """
        encode, _ = self._graph_functions
        return encode(text)

    def tf_decode(self, ids: Tensor) -> Tensor:
        """Same as `decode` in graphs: ints (B, T) -> strings (B,), (B, beam, T) -> (B, beam).

        Ids are dense with padding, or ragged; (T,) gives a scalar. Works where `tf_encode` works.
        """
        _, decode = self._graph_functions
        return decode(ids)

    @functools.cached_property
    def _graph_functions(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        return graph_functions(self._model)

    @functools.cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self._processor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self._model == other._model

    def __hash__(self) -> int:
        return hash(self._model)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._model,)

    def __repr__(self) -> str:
        return f"<Tokenizer vocab_size={self.vocab_size}, model of {len(self._model)} bytes>"


def decoded_rows(ids: Iterable[Any] | Ids, vocab_size: int) -> tuple[list[list[int]], bool]:
    """Returns the ids of each row that `decode` writes, and whether `ids` is a single row.

    Raises:
        ValueError: if an id is not within the vocabulary.
    """
    if hasattr(ids, "numpy") and not hasattr(ids, "tolist"):  # TensorFlow: its items are tensors
        ids = ids.numpy()
    rows = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    single = not hasattr(rows[0], "__len__") if rows else getattr(ids, "ndim", 1) == 1
    return [_kept(row, vocab_size) for row in ([rows] if single else rows)], single


def _kept(row: Iterable[int], vocab_size: int) -> list[int]:
    row = [int(i) for i in row]
    row = row[: row.index(END_ID)] if END_ID in row else row
    for i in row:
        if not 0 <= i < vocab_size:
            raise ValueError(
                f"id {i} is not within this vocabulary of {vocab_size} ids. Were "
                "the ids made by another tokenizer?"
            )
    return [i for i in row if i not in (PAD_ID, BEGIN_ID)]
