"""Text to token ids and back, the same on the Python side and inside TensorFlow graphs.

Importing this module needs SentencePiece only; TensorFlow is imported by the methods that use it.

Ids: 0 pad, 1 unknown, 2 begin, 3 end. Shapes: `B` batch, `T` tokens of the longest sentence.
"""

import io
import os
import re
import threading

import sentencepiece

from keras_transformer.files import whole_file
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID

MODEL_TYPES = ("unigram", "bpe")
NORMALIZATIONS = ("identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")

_sampling = threading.Lock()


class Tokenizer:
    """Subword tokenizer: one SentencePiece model, held as bytes, stored as one `.model` file.

    Sentences are segmented as the paper does with byte-pair encoding and word pieces (section 5.1),
    with one vocabulary for source and target, so that both embeddings and the output can share a
    matrix (section 3.4). `encode` adds neither begin nor end marks: the data pipeline and the
    search do.

    What round-trips: with the defaults (`normalization="identity"`, `byte_fallback=True`)
    `decode(encode(text))` gives back every character, emoji, control character and run of spaces,
    also those never seen in training (these become bytes). The one exception is U+2581 "▁", which
    SentencePiece uses for the space and which therefore comes back as a space. Tokenised text such
    as `"a man 's hat , red ."` comes back exactly.

    The Python side (`encode`, `decode`) and the graph side (`tf_encode`, `tf_decode`) give the same
    ids and text. Tokenizers can be pickled and copied, and are equal when their models are.

    Args:
        model: bytes, a serialised SentencePiece model whose ids 0-3 are pad, unknown, begin and
            end. Models come from `Tokenizer.train` or `Tokenizer.load`.

    Raises:
        TypeError: if `model` is not bytes.
        ValueError: if `model` is no SentencePiece model, or numbers its special tokens otherwise.

    Example:

    >>> tokenizer = Tokenizer.train(["a man 's hat , red ."], vocab_size=274)
    >>> tokenizer.decode(tokenizer.encode("a red hat 😀"))
    'a red hat 😀'
    """

    def __init__(self, model):
        if not isinstance(model, bytes):
            raise TypeError(
                f"Tokenizer expects the bytes of a SentencePiece model, got "
                f"{type(model).__name__}. Read a .model file with `Tokenizer.load(path)`."
            )
        processor = sentencepiece.SentencePieceProcessor()
        try:
            loaded = bool(model) and processor.LoadFromSerializedProto(model)
        except (RuntimeError, OSError):
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
        self._functions = None

    @classmethod
    def train(
        cls,
        lines,
        vocab_size=8000,
        *,
        model_type="unigram",
        normalization="identity",
        byte_fallback=True,
        character_coverage=1.0,
        hard_vocab_limit=True,
    ):
        """Trains a tokenizer on an iterable of strings, source and target sentences together.

        The result depends on the lines, their order and the arguments only.

        Args:
            lines: iterable of str, one sentence each. Empty ones are passed over.
            vocab_size: int, number of ids, the four special ones and the 256 bytes included.
            model_type: `"unigram"` (default; can sample segmentations by their probability) or
                `"bpe"` (samples by dropping merges).
            normalization: SentencePiece's rule: `"identity"` (default) leaves text as it is and
                keeps runs of spaces; `"nmt_nfkc"` (SentencePiece's own default), `"nfkc"`,
                `"nmt_nfkc_cf"`, `"nfkc_cf"` fold compatibility characters (and case) and collapse
                spaces, so text does not round-trip.
            byte_fallback: bool, write characters without a piece as UTF-8 bytes (256 ids) and not
                as unknown.
            character_coverage: float, share of the characters of `lines` that get an id of their
                own.
            hard_vocab_limit: bool. If False, `vocab_size` is an upper bound: little text gives
                fewer ids (unigram only).

        Returns:
            A `Tokenizer`.

        Raises:
            TypeError: if `lines` is one string, or holds something that is not a string.
            ValueError: if there is no text, or `vocab_size` does not fit to it (the message says
                what would).
        """
        if isinstance(lines, (str, bytes)):
            raise TypeError(
                f"`lines` must be an iterable of strings, got one {type(lines).__name__}. Pass "
                "a list of sentences; `read_lines(path)` reads them from a file."
            )
        _check_choice("model_type", model_type, MODEL_TYPES)
        _check_choice("normalization", normalization, NORMALIZATIONS)
        lines = [_checked(line, "lines", number) for number, line in enumerate(lines)]
        if not any(line.strip() for line in lines):
            raise ValueError(
                f"cannot train a tokenizer: none of the {len(lines)} lines holds text."
            )
        # SentencePiece silently leaves out longer lines than its limit: let that follow the text.
        longest = max(4 * len(line) for line in lines) + 1
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                vocab_size=vocab_size,
                model_type=model_type,
                normalization_rule_name=normalization,
                remove_extra_whitespaces=normalization != "identity",
                byte_fallback=byte_fallback,
                character_coverage=character_coverage,
                hard_vocab_limit=hard_vocab_limit,
                max_sentence_length=longest,
                pad_id=PAD_ID,
                unk_id=UNKNOWN_ID,
                bos_id=BEGIN_ID,
                eos_id=END_ID,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            raise ValueError(_training_problem(str(error), vocab_size)) from error
        return cls(_with_exact_scores(model.getvalue()))

    @classmethod
    def load(cls, path):
        """Reads a tokenizer from a `.model` file."""
        with open(path, "rb") as file:
            return cls(file.read())

    def save(self, path):
        """Writes one file, by custom `NAME.model`; it appears whole or not at all."""
        with whole_file(path) as aside:
            aside.write_bytes(self._model)

    @property
    def model(self):
        """The serialised SentencePiece model, bytes."""
        return self._model

    @property
    def vocab_size(self):
        """Number of ids, special ones included."""
        return self._processor.get_piece_size()

    def encode(self, text, sample=False, alpha=0.2, nbest_size=-1, seed=None):
        """Turns text into ids, without begin and end marks.

        Args:
            text: str or sequence of str.
            sample: bool. If True, draws a segmentation at random (subword regularisation) and does
                not take the best one. The text that the ids stand for stays the same.
            alpha: float, inverse temperature of the draw: small is more varied (unigram; on
                Multi30k 0.5, 0.2 and 0.1 make sentences 1.04, 1.3 and 1.9 times as long). For BPE
                the probability of dropping a merge.
            nbest_size: int, draw among the n best segmentations, or among all with -1 (default).
            seed: int or None. The same seed, text and tokenizer give the same draw; None draws
                anew each time.

        Returns:
            List of int for a string; list of such lists for a sequence.

        Raises:
            TypeError: if `text` holds something that is not a string.
            ValueError: if a string holds half a surrogate pair, which has no UTF-8 form.
        """
        single = isinstance(text, str)
        lines = [text] if single else list(text)
        lines = [_checked(line, "text", number) for number, line in enumerate(lines)]
        if sample:
            seed = int.from_bytes(os.urandom(4)) if seed is None else int(seed) % 2**32
            # The seed is the whole process' own, and each thread that SentencePiece starts takes
            # it over: so nobody else may set it meanwhile, and there is one such thread.
            with _sampling:
                sentencepiece.set_random_generator_seed(seed)
                ids = self._processor.encode(
                    lines, enable_sampling=True, alpha=alpha, nbest_size=nbest_size, num_threads=1
                )
        elif single:  # without the threads that a list starts: 2 us, not 100
            return self._processor.encode(lines[0])
        else:
            ids = self._processor.encode(lines)
        return ids[0] if single else ids

    def decode(self, ids):
        """Turns ids into text: stops at the first end mark, leaves out pad and begin marks.

        Args:
            ids: sequence of int for one sentence, or sequence of such sequences; lists, or an
                integer array of shape (T,) or (B, T).

        Returns:
            str for one sentence; list of str for several. Bytes that are not UTF-8 become U+FFFD,
            the unknown id becomes " ⁇ ".

        Raises:
            ValueError: if an id is not within the vocabulary.
        """
        ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if not ids or not hasattr(ids[0], "__len__"):
            return self._processor.decode(self._kept(ids))
        return self._processor.decode([self._kept(row) for row in ids])

    def _kept(self, row):
        row = [int(i) for i in row]
        row = row[: row.index(END_ID)] if END_ID in row else row
        for i in row:
            if not 0 <= i < self.vocab_size:
                raise ValueError(
                    f"id {i} is not within this vocabulary of {self.vocab_size} ids. Were "
                    "the ids made by another tokenizer?"
                )
        return [i for i in row if i not in (PAD_ID, BEGIN_ID)]

    def tf_encode(self, text):
        """`encode` for graphs: strings (B,) -> ragged int32 (B, T); a scalar gives int32 (T,).

        Works eagerly, in `tf.data` and in SavedModels. The model's bytes are written into the
        graph: nothing has to be tracked and no file to be kept beside it. Whoever loads such a
        SavedModel imports `tensorflow_text` first, for its operations.
        """
        import tensorflow as tf

        text = tf.convert_to_tensor(text, tf.string)
        ids = self._tf_functions()[0](tf.reshape(text, [-1]))
        return ids[0] if text.shape.rank == 0 else ids

    def tf_decode(self, ids):
        """`decode` for graphs: ints (B, T) -> strings (B,), or (B, beam, T) -> (B, beam).

        Ids may be dense, filled up with padding, or ragged; (T,) gives a scalar. For the rest see
        `tf_encode`.
        """
        import tensorflow as tf

        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(default_value=PAD_ID)
        ids = tf.cast(ids, tf.int32)
        shape = tf.shape(ids)
        rows = tf.reduce_prod(shape[:-1])  # -1 would be anything where there are no tokens
        text = self._tf_functions()[1](tf.reshape(ids, [rows, shape[-1]]))
        return tf.reshape(text, shape[:-1])

    def _tf_functions(self):
        if self._functions is None:
            self._functions = _tf_functions(self._model)
        return self._functions

    def __eq__(self, other):
        return isinstance(other, Tokenizer) and self._model == other._model

    def __hash__(self):
        return hash(self._model)

    def __reduce__(self):
        return Tokenizer, (self._model,)

    def __repr__(self):
        return f"<Tokenizer vocab_size={self.vocab_size}, model of {len(self._model)} bytes>"


def _checked(line, name, number):
    """Returns `line`, or says which item of `name` is no text that UTF-8 can hold."""
    if not isinstance(line, str):
        raise TypeError(
            f"`{name}` must hold strings, got {type(line).__name__} as item {number}. "
            "Decode bytes with `.decode('utf-8')`."
        )
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"item {number} of `{name}` holds half a surrogate pair at character {error.start}, "
            "which has no UTF-8 form. Read files with `read_lines`, which decodes strictly."
        ) from error
    return line


def _tf_functions(model):
    """`tf_encode` of a flat batch and `tf_decode` of a matrix, as two `tf.function`s.

    The `SentencepieceTokenizer` is made *inside* each graph. Made outside, its model would live in
    TensorFlow's cache of eager kernels, which `keras.utils.set_random_seed` empties: every later
    call would fail with "resource does not exist".
    """
    import tensorflow as tf
    import tensorflow_text

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def encode(text):
        return tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32).tokenize(text)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def decode(ids):
        before_end = tf.cumsum(tf.cast(ids == END_ID, tf.int32), axis=1) == 0
        kept = before_end & (ids != PAD_ID) & (ids != BEGIN_ID)  # (B, T)
        ids = tf.ragged.boolean_mask(ids, kept)
        # tensorflow_text strips every leading space of a text, Python one only (that which `encode`
        # put there). So an unknown token goes first and is cut off again, and then that one space;
        # but that of a text that begins with an unknown token, whose own form begins with one.
        marks = tf.fill([ids.nrows(), 1], UNKNOWN_ID)
        tokenizer = tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32)
        text = tokenizer.detokenize(tf.concat([marks, ids], axis=1))
        text = tf.strings.regex_replace(text, "^ \u2047 ", "")
        unknown_first = tf.squeeze(ids.to_tensor(PAD_ID, shape=[None, 1]), 1) == UNKNOWN_ID  # (B,)
        return tf.where(unknown_first, text, tf.strings.regex_replace(text, "^ ", ""))

    return encode, decode


def _check_choice(name, choice, choices):
    if choice not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {choice!r}.")


def _with_exact_scores(model):
    """Rounds a model's piece scores to 1/1024, so that float32 adds them without rounding.

    "000" can be "0 00" or "00 0", equally probable. Which one wins would hang on the rounding of
    the sums, and releases of SentencePiece (Python's, tensorflow_text's) sum in different orders.
    Exact sums tie exactly.
    """
    from sentencepiece import sentencepiece_model_pb2  # needs protobuf: for training only

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for piece in proto.pieces:
        piece.score = round(piece.score * 1024) / 1024
    return proto.SerializeToString(deterministic=True)


def _training_problem(message, vocab_size):
    """Says in our words what SentencePiece's trainer refused."""
    too_high = re.search(r"Vocabulary size too high.*<= (\d+)", message)
    if too_high:
        return (
            f"vocab_size={vocab_size} is too large for this text: the largest that works is "
            f"{too_high[1]}. Ask for that, pass hard_vocab_limit=False to take what the text gives "
            "(unigram), or train on more text."
        )
    too_low = re.search(r"smaller than required_chars\. *\d+ vs (\d+)", message)
    if too_low:
        return (
            f"vocab_size={vocab_size} is too small: special tokens, bytes and single characters "
            f"alone need {too_low[1]}. Ask for more, or lower character_coverage, or pass "
            "byte_fallback=False."
        )
    return f"SentencePiece could not train with vocab_size={vocab_size}: {message}"
