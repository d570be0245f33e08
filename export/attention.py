"""The attention of a translator's decoder to the source, as an artefact.

Shapes: B batch, S source length, T target length, D d_model.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.export.onnx_model import export_onnx
from keras_transformer.layers.blocks import DecoderBlock
from keras_transformer.models import Transformer
from keras_transformer.types import StrPath, Tensor

ATTENTION = "attention"  # (B, T, S) float32, the output


@keras.saving.register_keras_serializable("keras_transformer")
class MemoryAttention(keras.layers.Layer):
    """The attention of a `DecoderBlock` to each source token, averaged over its heads.

    Args:
        block: the block.

    Call arguments:
        inputs: the block's input (B, T, D).
        memory: the encoder's output (B, S, D).
        memory_mask: boolean (B, S). Defaults to `None`.

    Returns:
        A tensor (B, T, S).
    """

    def __init__(self, block: DecoderBlock, **options: Any) -> None:
        super().__init__(**options)
        self.block = block
        self.supports_masking = True  # the mask of the target passes through

    def build(self, inputs_shape: tuple, memory_shape: tuple) -> None:
        if not self.block.built:
            self.block.build(inputs_shape, memory_shape)

    def call(self, inputs: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        options = {"memory_mask": memory_mask, "return_attention_scores": True}
        return ops.mean(self.block(inputs, memory, **options)[1]["cross"], axis=1)

    def compute_output_shape(self, inputs_shape: tuple, memory_shape: tuple) -> tuple:
        return (*inputs_shape[:2], memory_shape[1])

    def get_config(self) -> dict[str, Any]:
        block = keras.saving.serialize_keras_object(self.block)
        return {**super().get_config(), "block": block}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MemoryAttention":
        return cls(keras.saving.deserialize_keras_object(config.pop("block")), **config)


def export_attention(
    model: Transformer, path: StrPath, block: int = -1, **options: Any
) -> dict[str, Any]:
    """Writes an artefact that gives the attention of a `Transformer` to its source.

    Its inputs are `source_ids` (B, S), which end with the end token, and `target_ids` (B, T), which
    start with the begin token. Its output `attention` (B, T, S) has a row for each step: the
    attention of the step that wrote the next token, averaged over the heads. The weights of a row
    sum to 1. The page of `export/web` shows them, and `Predictor` returns them.

    Args:
        model: `Transformer`.
        path: folder to write, as in `export_onnx`.
        block: index of the decoder's block, as in a list. Defaults to -1, the last block.
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
