"""Small random models of Keras, keras.applications and KerasHub."""

import keras
import keras_hub
import numpy as np
from keras import layers
from kinds_rows import VOCABULARY, Row, frames, ids, images

SMALL = {"num_layers": 2, "num_heads": 4, "hidden_dim": 64, "intermediate_dim": 128}
TEXT = {"vocabulary_size": VOCABULARY, **SMALL}


def application(name, **options):
    """Returns a builder of a `keras.applications` model: images (32, 32, 3) to ten logits."""

    def build():
        image = keras.Input((32, 32, 3), name="image")
        settings = {"weights": None, "classes": 10, "classifier_activation": None, **options}
        model = getattr(keras.applications, name)(input_shape=(32, 32, 3), **settings)
        return keras.Model(image, model(image), name=model.name)

    return build


def backbone(name, **options):
    """Returns a builder of a KerasHub model with random weights."""
    make = getattr(keras_hub.models, f"{name}Backbone")
    return lambda: make(**options)


def keras_attention():
    """Builds a classifier from Keras' own embedding, attention, norm and pooling."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    x = layers.Embedding(VOCABULARY, 64, mask_zero=True)(source_ids)
    x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(4, 16)(x, x)]))
    x = layers.GlobalMaxPooling1D()(x)
    return keras.Model(source_ids, layers.Dense(3, name="classes")(x))


def text_inputs(*, segments=False):
    """Returns a function that makes inputs for KerasHub's encoders and language models."""

    def make(rng, real):
        found = {"token_ids": ids(rng, real), "padding_mask": real.astype("int32")}
        if segments:
            found["segment_ids"] = np.zeros(real.shape, "int32")
        return found

    return make


def pair_inputs(rng, real):
    sides = {}
    for side in ("encoder", "decoder"):
        sides[f"{side}_token_ids"] = ids(rng, real)
        sides[f"{side}_padding_mask"] = real.astype("int32")
    return sides


def whisper_inputs(rng, real):
    return {
        "encoder_features": frames(rng, np.ones((len(real), 48), bool), 80),
        "decoder_token_ids": ids(rng, real),
        "decoder_padding_mask": real.astype("int32"),
    }


def image_inputs(name, prepare=lambda pixels: pixels):
    return lambda rng, real: {name: prepare(images(rng, real))}


def pictures(name, module, **options):
    """Makes a row of `application`, with the preprocessing that the model requires."""
    prepare = getattr(keras.applications, module).preprocess_input
    inputs = image_inputs("image", lambda pixels: np.asarray(prepare(255.0 * pixels)))
    return other(name, application(name, **options), inputs, sequence=False)


def other(name, build, inputs, **options):
    return Row(name, build, inputs, **{"sides": (), "blank": False, "own": False, **options})


LLAMA = {
    "vocabulary_size": VOCABULARY,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 64,
    "intermediate_dim": 128,
}
VIT = {
    "image_shape": (32, 32, 3),
    "patch_size": (8, 8),
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 64,
    "mlp_dim": 128,
}
WHISPER = {"max_encoder_sequence_length": 48, "max_decoder_sequence_length": 64}
ROWS = [
    other("Keras' attention", keras_attention, lambda rng, real: {"source_ids": ids(rng, real)}),
    pictures("MobileNetV2", "mobilenet_v2", alpha=0.35),
    pictures("MobileNetV3Small", "mobilenet_v3"),
    pictures("MobileNet", "mobilenet", alpha=0.25),
    pictures("ResNet50V2", "resnet_v2"),
    pictures("ConvNeXtTiny", "convnext"),
    other("BERT", backbone("Bert", **TEXT), text_inputs(segments=True)),
    other("ALBERT", backbone("Albert", **TEXT, embedding_dim=32), text_inputs(segments=True)),
    other("GPT-2", backbone("GPT2", **TEXT), text_inputs()),
    other("Llama", backbone("Llama", **LLAMA), text_inputs()),
    other("BART", backbone("Bart", **TEXT), pair_inputs),
    other("T5", backbone("T5", **TEXT), pair_inputs),
    other("Whisper", backbone("Whisper", **TEXT, **WHISPER), whisper_inputs),
    other("ViT", backbone("ViT", **VIT), image_inputs("images"), sequence=False),
]
