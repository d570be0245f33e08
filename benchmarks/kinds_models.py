"""Kinds of task in the table, each as a small model of this package's layers."""

import keras
from keras import layers, ops
from kinds_rows import VOCABULARY, Row, frames, ids, images, longer, prompts, segments

import keras_transformer as kt

V, D, H, F = VOCABULARY, 64, 4, 128
SHAPE = {"num_layers": 2, "d_model": D, "num_heads": H, "d_ff": F}
LEFT_TOO = ("right", "left")


def text(name="source_ids"):
    return keras.Input((None,), dtype="int32", name=name)


def blocks(x, **options):
    for _ in range(2):
        x = kt.EncoderBlock(H, F, **options)(x)
    return x


def classes():
    ids = text()
    x = kt.SequencePooling()(kt.TransformerEncoder(V, **SHAPE, positions="rotary")(ids))
    return keras.Model(ids, layers.Dense(3, activation="softmax", name="classes")(x))


def classes_by_token():
    ids = text()
    x = kt.ClassToken()(kt.TokenEmbedding(V, D)(ids))
    x = blocks(kt.LearnedPositionEncoding(64)(x))
    return keras.Model(ids, layers.Dense(3, name="classes")(x[:, 0]))


def tags():
    encoder = kt.TransformerEncoder(V, **SHAPE)
    return keras.Model(encoder.input, layers.Dense(5, name="tags")(encoder.output))


def spans():
    ids, segment_ids = text(), text("segment_ids")
    x = kt.SegmentEmbedding()(kt.TokenEmbedding(V, D)(ids), segment_ids)
    x = blocks(kt.SinusoidalPositionEncoding()(x))
    second = ops.equal(segment_ids, 2)
    outputs = {
        name: ops.where(second, layers.Dense(1, name=f"{name}_score")(x)[..., 0], -1e9)
        for name in ("start", "end")
    }
    return keras.Model({"source_ids": ids, "segment_ids": segment_ids}, outputs)


def sentence_encoder():
    ids = text()
    x = kt.SequencePooling()(kt.TransformerEncoder(V, **SHAPE)(ids))
    return keras.Model(ids, layers.UnitNormalization(name="vector")(x), name="sentence")


def siamese():
    encoder = sentence_encoder()
    first, second = text("one"), text("two")
    cosine = layers.Dot(axes=1, name="cosine")([encoder(first), encoder(second)])
    return keras.Model([first, second], cosine)


def shared_block():
    ids, block = text(), kt.EncoderBlock(H, F)
    x = kt.SinusoidalPositionEncoding()(kt.TokenEmbedding(V, D)(ids))
    x = kt.SequencePooling("max")(block(block(x)))
    return keras.Model(ids, layers.Dense(3, name="classes")(x))


def language_model():
    return kt.CausalTransformer(V, **SHAPE, positions="rotary")


def translator():
    return kt.Transformer(V, **SHAPE)


def pictures():
    image = keras.Input((32, 32, 3), name="image")
    x = kt.ClassToken()(kt.PatchEmbedding(D, 8)(image))
    x = blocks(kt.LearnedPositionEncoding(17)(x), norm_first=True)
    return keras.Model(image, layers.Dense(10, name="classes")(x[:, 0]))


def series():
    past = keras.Input((None, 5), name="past")
    x = layers.Dense(D)(layers.Masking()(past))
    x = blocks(kt.SinusoidalPositionEncoding()(x), use_bias=True)
    return keras.Model(past, layers.Dense(2, name="future")(x))


def sound_encoder(name="sound"):
    """Builds two strided convolutions and blocks: (B, S, 20) to (B, S / 4, D), with a mask."""
    sound = keras.Input((None, 20), name=name)
    x = layers.Masking()(sound)
    for _ in range(2):
        x = kt.MaskedConv1D(D, 3, strides=2, activation="gelu")(x)
    return keras.Model(sound, blocks(kt.SinusoidalPositionEncoding()(x)))


def sound_classes():
    encoder = sound_encoder()
    x = kt.SequencePooling()(encoder.output)
    return keras.Model(encoder.input, layers.Dense(4, name="classes")(x))


def sound_to_text():
    return kt.Transformer(V, **SHAPE, encoder=sound_encoder())


def pictures_to_text():
    image = keras.Input((32, 32, 3), name="image")
    x = kt.LearnedPositionEncoding(16)(kt.PatchEmbedding(D, 8)(image))
    return kt.Transformer(V, **SHAPE, encoder=keras.Model(image, blocks(x)))


def recurrent():
    ids = text()
    x = kt.TokenEmbedding(V, D)(ids)
    x = layers.Bidirectional(layers.LSTM(D // 2, return_sequences=True))(x)
    x = layers.GRU(D, return_sequences=True)(kt.EncoderBlock(H, F)(x))
    return keras.Model(ids, layers.Dense(3, name="classes")(kt.SequencePooling()(x)))


def text_and_numbers():
    ids, numbers = text(), keras.Input((4,), name="numbers")
    x = kt.SequencePooling()(kt.TransformerEncoder(V, **SHAPE)(ids))
    x = layers.Concatenate()([x, layers.Dense(D, activation="relu")(numbers)])
    inputs = {"source_ids": ids, "numbers": numbers}
    return keras.Model(inputs, layers.Dense(3, name="classes")(x))


def several_outputs():
    encoder = kt.TransformerEncoder(V, **SHAPE)
    x = kt.SequencePooling()(encoder.output)
    outputs = {
        "tags": layers.Dense(5)(encoder.output),
        "classes": layers.Dense(3, activation="softmax")(x),
        "rating": layers.Dense(1)(x),
    }
    return keras.Model(encoder.input, outputs)


def added_embeddings():
    ids, kinds = text(), text("kinds")
    x = layers.Add()([kt.TokenEmbedding(V, D)(ids), kt.TokenEmbedding(7, D)(kinds)])
    x = kt.SequencePooling()(blocks(x))
    return keras.Model({"source_ids": ids, "kinds": kinds}, layers.Dense(3, name="classes")(x))


def one(name, make):
    """Returns a function that makes the inputs of a model with one input."""
    return lambda rng, real: {name: make(rng, real)}


def sound(rng, real):
    return frames(rng, real, 20)


def pair(rng, real):
    return {"one": ids(rng, real), "two": ids(rng, longer(real))}


def two_texts(rng, real):
    return {"source_ids": ids(rng, real), "segment_ids": segments(real)}


def numbers_too(rng, real):
    numbers = rng.standard_normal((len(real), 4)).astype("float32")
    return {"source_ids": ids(rng, real), "numbers": numbers}


def kinds_too(rng, real):
    return {"source_ids": ids(rng, real), "kinds": ids(rng, real, 1, 7)}


def series_inputs(rng, real):
    return frames(rng, real, 5)


TEXT = one("source_ids", ids)
IMAGE = one("image", images)
ROWS = [
    Row("classes", classes, TEXT, sides=LEFT_TOO),
    Row("classes, class token", classes_by_token, TEXT),
    Row("tags", tags, TEXT),
    Row("spans of two texts", spans, two_texts),
    Row("vectors", sentence_encoder, TEXT),
    Row("language model, logits", language_model, one("target_ids", prompts), blank=False),
    Row(
        "language model, greedy",
        language_model,
        one("source_ids", prompts),
        search=kt.GreedySearch,
        left=False,
        blank=False,
    ),
    Row(
        "language model, sampling",
        language_model,
        one("source_ids", prompts),
        search=kt.Sampling,
        left=False,
        blank=False,
    ),
    Row("text to text, beam 4", translator, TEXT, search=lambda: kt.BeamSearch(4, 0.6)),
    Row("pictures to class", pictures, IMAGE, sides=(), sequence=False),
    Row(
        "pictures to text, greedy",
        pictures_to_text,
        IMAGE,
        search=kt.GreedySearch,
        sides=(),
        sequence=False,
    ),
    Row("series to series", series, one("past", series_inputs)),
    Row("sound to class", sound_classes, one("sound", sound)),
    Row(
        "sound to text, beam 4",
        sound_to_text,
        one("sound", sound),
        search=lambda: kt.BeamSearch(4, 0.6),
    ),
    Row("recurrent layers and attention", recurrent, TEXT),
    Row("a model used twice", siamese, pair),
    Row("a block used twice", shared_block, TEXT),
    Row("text and numbers", text_and_numbers, numbers_too),
    Row("several outputs", several_outputs, TEXT),
    Row("embeddings added", added_embeddings, kinds_too, sides=LEFT_TOO),
]
