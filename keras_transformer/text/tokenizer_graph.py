"""The tokenizer inside TensorFlow graphs: the same ids and text as in Python.

TensorFlow is imported when the functions are made: serving imports this module without it.
"""

import hashlib

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID


def graph_functions(model):
    """`Tokenizer.tf_encode` and `Tokenizer.tf_decode` of a serialised SentencePiece model, bytes.

    The `SentencepieceTokenizer` is made *inside* each graph. Made outside, its model would live in
    TensorFlow's cache of eager kernels, which `keras.utils.set_random_seed` empties: every later
    call would fail with "resource does not exist". Its name tells models apart: in a SavedModel,
    operators of one name share what they hold, so that a second tokenizer would be the first.
    """
    import tensorflow as tf
    import tensorflow_text

    name = f"sentencepiece_{hashlib.sha256(model).hexdigest()[:16]}"

    def made():
        return tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32, name=name)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def encode_batch(text):
        return made().tokenize(text)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def decode_batch(ids):
        before_end = tf.cumsum(tf.cast(ids == END_ID, tf.int32), axis=1) == 0
        kept = before_end & (ids != PAD_ID) & (ids != BEGIN_ID)  # (B, T)
        ids = tf.ragged.boolean_mask(ids, kept)
        # tensorflow_text strips every leading space of a text, Python only the one that `encode`
        # put there. So an unknown token is put first, and its text and that one space are cut off.
        # A text that begins with an unknown token keeps its space: the token is written with one.
        first = tf.fill([ids.nrows(), 1], UNKNOWN_ID)
        text = made().detokenize(tf.concat([first, ids], axis=1))
        text = tf.strings.regex_replace(text, "^ \u2047 ", "")
        unknown_first = tf.squeeze(ids.to_tensor(PAD_ID, shape=[None, 1]), 1) == UNKNOWN_ID  # (B,)
        return tf.where(unknown_first, text, tf.strings.regex_replace(text, "^ ", ""))

    def encode(text):
        text = tf.convert_to_tensor(text, tf.string)
        ids = encode_batch(tf.reshape(text, [-1]))
        return ids[0] if text.shape.rank == 0 else ids

    def decode(ids):
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(default_value=PAD_ID)
        ids = tf.cast(ids, tf.int32)
        shape = tf.shape(ids)
        rows = tf.reduce_prod(shape[:-1])  # -1 would be anything where there are no tokens
        text = decode_batch(tf.reshape(ids, [rows, shape[-1]]))
        return tf.reshape(text, shape[:-1])

    return encode, decode
