"""What exporters to other engines share: the paper's two stacks, and a refusal of all else by name.

An engine that was written for published translation models holds a model of embeddings, positions
that are added, blocks of attention and a feed-forward network, and logits. Here is what such a
model is made of, and what of ours is something else.

Shapes: P positions, D d_model.
"""

import json

import keras
import numpy as np

from keras_transformer.export.arguments import check_weights
from keras_transformer.models import Transformer
from keras_transformer.text.tokenizer import Tokenizer

CONFIG_FILE = "config.json"
# The key and value of that file by which an earlier export is known. Engines pass over it.
PRODUCER = {"producer": "keras-transformer-onnx"}


def check_translator(model, **tokenizers):
    """Raises unless `model` is a `Transformer`, and each tokenizer a SentencePiece one or `None`.

    Raises:
        TypeError: another model, or a tokenizer of another kind.
        ExportError: a weight holds NaN.
    """
    if not isinstance(model, Transformer):
        raise TypeError(
            f"model must be a Transformer, but {type(model).__name__} was passed. Export others "
            "with export_onnx."
        )
    for name, given in tokenizers.items():
        if given is not None and not isinstance(given, Tokenizer):
            raise TypeError(
                f"{name} must be a Tokenizer, a SentencePiece model, but {type(given).__name__} "
                "was passed."
            )
    check_weights(model)


def differences(model, activations):
    """What no engine for published translation models holds, list of str, each naming an argument.

    Args:
        model: `Transformer`.
        activations: the engine's name of each activation, `{function: name}`.
    """
    found = []
    if model.encoder_stack is None:
        return [f"encoder={model.encoder.name!r}, a model of your own"]
    if model.recurrent_decoder:
        found.append("recurrent_decoder=True")
    if model.encoder_stack.positions.in_attention:
        found.append(
            f"positions={type(model.encoder_stack.positions).__name__} inside of attention"
        )
    if keras.activations.get(model.activation) not in activations:
        known = sorted(function.__name__ for function in activations)
        found.append(f"activation={model.get_config()['activation']!r}, known are {known}")
    size = model.d_model // model.num_heads
    if {model.key_dim, model.value_dim} - {None, size}:
        found.append(
            f"key_dim={model.key_dim}, value_dim={model.value_dim}, where heads have "
            f"d_model / num_heads = {size} channels"
        )
    return found


def refuse(engine, found):
    """Raises `ValueError` if there is a difference, naming all of them."""
    if found:
        raise ValueError(
            f"{engine} cannot hold this model: it has {'; '.join(found)}. Export it with "
            "export_onnx, which holds every model."
        )


def depths(model):
    """Blocks in the encoder and in the decoder."""
    return len(model.encoder_stack.blocks), len(model.decoder_stack.blocks)


def weights_of(model):
    """`{path: array}` of all weights."""
    return {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}


def position_tables(model, length):
    """What the two sides add to the embeddings of the first positions, two arrays (P, D)."""
    nothing = np.zeros((1, length, model.d_model), "float32")
    stacks = model.encoder_stack, model.decoder_stack
    return [np.asarray(stack.positions.add(nothing))[0] for stack in stacks]


def why_not_made_of(*names):
    """For `staging.staged`: why a folder is no earlier export that is made of these files."""

    def why_not(folder):
        for item in sorted(folder.iterdir()):
            if item.name not in names or not item.is_file():
                return f"{item.name} is no file of such an export"
        try:
            config = json.loads((folder / CONFIG_FILE).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            return f"its {CONFIG_FILE} cannot be read: {error}"
        if not isinstance(config, dict) or not PRODUCER.items() <= config.items():
            return f"its {CONFIG_FILE} does not name its producer, so it came from elsewhere"
        return None

    return why_not
