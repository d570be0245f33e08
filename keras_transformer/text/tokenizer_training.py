"""Trains SentencePiece models, and says in our words what its trainer refuses."""

import io
import re

import sentencepiece

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID

MODEL_TYPES = ("unigram", "bpe", "char", "word")
NORMALIZATIONS = ("identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")


def train_model(
    lines,
    vocab_size,
    *,
    model_type,
    normalization,
    byte_fallback,
    character_coverage,
    hard_vocab_limit,
):
    """A serialised SentencePiece model, bytes. Arguments and errors as `Tokenizer.train`.

    Args:
        lines: list of str.
    """
    _check_choice("model_type", model_type, MODEL_TYPES)
    _check_choice("normalization", normalization, NORMALIZATIONS)
    if not any(line.strip() for line in lines):
        raise ValueError(f"cannot train a tokenizer: none of the {len(lines)} lines holds text.")
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
    return _with_exact_scores(model.getvalue())


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
            "(unigram, word), or train on more text."
        )
    if "char_model_trainer" in message:
        return (
            f"vocab_size={vocab_size} is too small: special tokens and bytes alone need 260. Ask "
            "for more, or pass byte_fallback=False."
        )
    too_low = re.search(r"smaller than required_chars\. *\d+ vs (\d+)", message)
    if too_low:
        return (
            f"vocab_size={vocab_size} is too small: special tokens, bytes and single characters "
            f"alone need {too_low[1]}. Ask for more, or lower character_coverage, or pass "
            "byte_fallback=False."
        )
    return f"SentencePiece could not train with vocab_size={vocab_size}: {message}"
