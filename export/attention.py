"""Where a translator looks: the attention of its decoder to the source, as an artefact of its own.

Shapes: B batch, S source length, T target length, D d_model, H heads.
"""

import keras
from keras import ops

from keras_transformer.export.onnx_model import export_onnx
from keras_transformer.models import Transformer

ATTENTION = "attention"  # (B, T, S) float32, the output


@keras.saving.register_keras_serializable("keras_transformer")
class MemoryAttention(keras.layers.Layer):
    """The attention of a `DecoderBlock` to each source token, mean over its heads: (B, T, S).

    A layer, since Keras' functional models want the same number of outputs from each call of one.

    Args:
        block: DecoderBlock.
    """

    def __init__(self, block, **options):
        super().__init__(**options)
        self.block = block
        self.supports_masking = True  # the target's mask passes through

    def build(self, inputs_shape, memory_shape):
        if not self.block.built:
            self.block.build(inputs_shape, memory_shape)

    def call(self, inputs, memory, memory_mask=None):
        options = {"memory_mask": memory_mask, "return_attention_scores": True}
        return ops.mean(self.block(inputs, memory, **options)[1]["cross"], axis=1)

    def compute_output_shape(self, inputs_shape, memory_shape):
        return (*inputs_shape[:2], memory_shape[1])

    def get_config(self):
        block = keras.saving.serialize_keras_object(self.block)
        return {**super().get_config(), "block": block}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop("block")), **config)


def export_attention(model, path, block=-1, **options):
    """Writes an artefact that gives the attention of a `Transformer` to its source.

    Its inputs are `source_ids` (B, S), which end with the end token, and `target_ids` (B, T), which
    start with the begin token; its output `attention` (B, T, S) has a row for each step, whose
    weights sum to 1: what a step that wrote the next token looked at, mean over the heads. The page
    of `export/web` shows it, and `Predictor` gives it.

    Args:
        model: `Transformer`.
        path: folder to write, as in `export_onnx`.
        block: int, the decoder's block, counted as in a list. Defaults to the last.
        **options: as in `export_onnx`, such as `precision` and `verbose`.

    Returns:
        The manifest, a dict with the content of `artefact.json`.

    Raises:
        TypeError: `model` is no `Transformer`, or `block` no integer.
        ValueError: there is no such block.
        ExportError: as in `export_onnx`.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> export_attention(model, "out/attention", precision="int8")  # doctest: +SKIP
    """
    if not isinstance(model, Transformer):
        raise TypeError(
            f"export_attention takes a Transformer, which attends to a source, and got a "
            f"{type(model).__name__}."
        )
    blocks = model.decoder_stack.blocks
    if isinstance(block, bool) or not isinstance(block, int):
        raise TypeError(f"`block` must be an integer, got {block!r}.")
    if not -len(blocks) <= block < len(blocks):
        raise ValueError(f"`block` is {block}, and the decoder has {len(blocks)} blocks.")
    inputs, memory = blocks[block].input
    weights = MemoryAttention(blocks[block], name=ATTENTION)(inputs, memory)
    return export_onnx(keras.Model(model.input, {ATTENTION: weights}), path, **options)
