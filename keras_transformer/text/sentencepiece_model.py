"""SentencePiece models as bytes: training, and their use inside TensorFlow graphs.

TensorFlow is imported only by `graph_functions`: serving imports this module without it.
"""

import hashlib
import io
import re
from collections.abc import Callable

import sentencepiece

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from keras_transformer.types import Tensor

MODEL_TYPES = ("unigram", "bpe", "char", "word")
CHARACTERS_PER_PIECE, MOST_PIECES = 2000, 32_000  # see `sensible_size`
NORMALIZATIONS = ("identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")


def train_model(
    lines: list[str],
    vocab_size: int,
    *,
    model_type: str,
    normalization: str,
    byte_fallback: bool,
    character_coverage: float,
    hard_vocab_limit: bool,
    symbols: list[str],
) -> bytes:
    """Trains a SentencePiece model for `Tokenizer.train`, which documents arguments and errors."""
    _check_choice("model_type", model_type, MODEL_TYPES)
    _check_choice("normalization", normalization, NORMALIZATIONS)
    if not any(line.strip() for line in lines):
        raise ValueError(f"cannot train a tokenizer: none of the {len(lines)} lines holds text.")
    if wrong := [symbol for symbol in symbols if symbol in ("", *SPECIAL_PIECES)]:
        raise ValueError(
            f"symbols must be texts other than the special tokens {', '.join(SPECIAL_PIECES)}, got "
            f"{wrong[0]!r}. Leave it out."
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            # SentencePiece silently leaves out lines with this character, which it uses itself.
            sentence_iterator=(line.replace("\u2585", " ") for line in lines),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            normalization_rule_name=normalization,
            remove_extra_whitespaces=normalization != "identity",
            byte_fallback=byte_fallback and model_type != "word",
            character_coverage=character_coverage,
            hard_vocab_limit=hard_vocab_limit,
            user_defined_symbols=[symbol.replace(" ", "\u2581") for symbol in symbols],
            # SentencePiece silently leaves out lines of more bytes than this, at least 10.
            max_sentence_length=max(10, max(4 * len(line) for line in lines) + 1),
            pad_id=PAD_ID,
            unk_id=UNKNOWN_ID,
            bos_id=BEGIN_ID,
            eos_id=END_ID,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        size = sensible_size(lines, byte_fallback)
        problem = _training_problem(str(error), vocab_size, size, model_type)
        raise ValueError(problem) from error
    return _with_exact_scores(model.getvalue())


def sensible_size(lines: list[str], byte_fallback: bool = True) -> int:
    """Returns a vocabulary size for an amount of text, by the rule of `Tokenizer.train`."""
    single = len(set(" ").union(*lines)) + (260 if byte_fallback else 4)
    pieces = sum(map(len, lines)) // CHARACTERS_PER_PIECE
    return max(single, min(single + pieces, MOST_PIECES))


def _check_choice(name: str, choice: str, choices: tuple[str, ...]) -> None:
    if choice not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {choice!r}.")


def _with_exact_scores(model: bytes) -> bytes:
    """Rounds a model's piece scores to 1/1024, so that float32 adds them without rounding.

    "000" can be "0 00" or "00 0" with equal probability. Releases of SentencePiece (Python,
    tensorflow_text) add scores in different orders, so rounding would decide. Exact sums tie.
    """
    from sentencepiece import sentencepiece_model_pb2  # needs protobuf: for training only

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for piece in proto.pieces:
        piece.score = round(piece.score * 1024) / 1024
    return proto.SerializeToString(deterministic=True)


def _training_problem(message: str, vocab_size: int, sensible: int, model_type: str) -> str:
    """Explains an error message of SentencePiece's trainer."""
    if defined := re.search(r"INTERNAL: (.*) is already defined", message):
        return f"symbols has {defined[1]!r} twice, or it is the piece of a byte. Leave it out."
    if "required_chars_.empty()" in message or "(sum) > (0)" in message:
        return "The symbols cover the whole text. Leave one out, or train on more text."
    too_high = re.search(r"Vocabulary size too high.*<= (\d+)", message)
    if too_high and model_type == "word":
        return (
            f"vocab_size={vocab_size} is too large for this text of {too_high[1]} different words "
            "and special tokens. Pass hard_vocab_limit=False to take them all."
        )
    if too_high and int(too_high[1]) <= sensible:
        return (
            f"vocab_size={vocab_size} is too large for this text, which says the same again and "
            f"again. Pass vocab_size={too_high[1]}, which is all that it has pieces for, or train "
            "on more text."
        )
    if too_high:
        return (
            f"vocab_size={vocab_size} is too large for this text. Pass vocab_size={sensible}, or "
            f"train on more text. Near {too_high[1]}, the limit, most pieces would be too rare to "
            "learn."
        )
    too_low = re.search(r"smaller than required_chars\. *\d+ vs (\d+)", message)
    if too_low or "char_model_trainer" in message:
        return (
            f"vocab_size={vocab_size} is too small: special tokens, bytes and single characters "
            f"alone need {too_low[1] if too_low else 260}. Pass vocab_size={sensible}; with "
            "hard_vocab_limit=False, if the text has fewer pieces."
        )
    return f"SentencePiece could not train with vocab_size={vocab_size}: {message}"


def graph_functions(
    model: bytes,
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Returns `Tokenizer.tf_encode` and `Tokenizer.tf_decode` of a serialised model.

    Each graph makes its own `SentencepieceTokenizer`. One made outside would live in TensorFlow's
    cache of eager kernels, which `keras.utils.set_random_seed` empties: every later call would fail
    with "resource does not exist". The operator's name depends on the model, because in a
    SavedModel operators of the same name share one resource.
    """
    import tensorflow as tf
    import tensorflow_text
    from sentencepiece import sentencepiece_model_pb2

    normalizer = sentencepiece_model_pb2.ModelProto.FromString(model).normalizer_spec
    added = "^ " if normalizer.add_dummy_prefix else "^$"  # by `encode`
    leading = "^ +" if normalizer.remove_extra_whitespaces else added
    name = f"sentencepiece_{hashlib.sha256(model).hexdigest()[:16]}"

    def make_tokenizer():
        return tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32, name=name)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def encode_batch(text):
        return make_tokenizer().tokenize(text)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def decode_batch(ids):
        before_end = tf.cumsum(tf.cast(ids == END_ID, tf.int32), axis=1) == 0
        kept = before_end & (ids != PAD_ID) & (ids != BEGIN_ID)  # (B, T)
        ids = tf.ragged.boolean_mask(ids, kept)
        # tensorflow_text strips all leading spaces of a text; Python strips only one that
        # `encode` adds, unless the model removes extra white space. An unknown token in front
        # protects them. Its text is cut off afterwards, with one space, unless the text begins with
        # an unknown token, which is written with one.
        first = tf.fill([ids.nrows(), 1], UNKNOWN_ID)
        text = make_tokenizer().detokenize(tf.concat([first, ids], axis=1))
        text = tf.strings.regex_replace(text, "^ \u2047 ", "")
        unknown_first = tf.squeeze(ids.to_tensor(PAD_ID, shape=[None, 1]), 1) == UNKNOWN_ID  # (B,)
        return tf.where(unknown_first, text, tf.strings.regex_replace(text, leading, ""))

    def encode(text: Tensor) -> Tensor:
        text = tf.convert_to_tensor(text, tf.string)
        ids = encode_batch(tf.reshape(text, [-1]))
        return ids[0] if text.shape.rank == 0 else ids

    def decode(ids: Tensor) -> Tensor:
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(default_value=PAD_ID)
        ids = tf.cast(ids, tf.int32)
        shape = tf.shape(ids)
        rows = tf.reduce_prod(shape[:-1])  # -1 would be ambiguous if there are no tokens
        text = decode_batch(tf.reshape(ids, [rows, shape[-1]]))
        return tf.reshape(text, shape[:-1])

    return encode, decode
