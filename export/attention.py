"""Exports the attention of a translator's decoder to the source.

Shapes: B batch, S source length, T target length.
"""

from typing import Any

import keras

from keras_transformer.export.onnx_model import export_onnx
from keras_transformer.models import Transformer
from keras_transformer.training.alignment import with_alignments
from keras_transformer.types import StrPath

ATTENTION = "attention"  # (B, T, S) float32, the output


def export_attention(
    model: Transformer, path: StrPath, block: int = -1, **options: Any
) -> dict[str, Any]:
    """Writes an artefact that computes the attention of a `Transformer` to its source.

    Its inputs are `source_ids` (B, S), which end with the end token, and `target_ids` (B, T), which
    start with the begin token. Each row of its output `attention` (B, T, S) is the attention of the
    step that predicts the next token, averaged over the heads. The weights of a row sum to 1. The
    page of `export/web` shows them, and `Predictor` returns them.

    Args:
        model: `Transformer`.
        path: folder to write, as in `export_onnx`.
        block: index of the decoder's block, as in a list. Defaults to -1, the last block.
        **options: as in `export_onnx`, such as `precision` and `verbose`.

    Returns:
        The manifest, a dict with the content of `artefact.json`.

    Raises:
        TypeError: `model` is not a `Transformer`, or `block` not an integer.
        ValueError: `block` is out of range.
        ExportError: as in `export_onnx`.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> export_attention(model, "out/attention", precision="int8")  # doctest: +SKIP
    """
    if not isinstance(model, Transformer):
        raise TypeError(
            f"export_attention takes a Transformer, which attends to a source, but got a "
            f"{type(model).__name__}."
        )
    blocks = model.decoder_stack.blocks
    if isinstance(block, bool) or not isinstance(block, int):
        raise TypeError(f"`block` must be an integer, got {block!r}.")
    if not -len(blocks) <= block < len(blocks):
        raise ValueError(f"`block` is {block}, but the decoder has {len(blocks)} blocks.")
    heads = tuple((block, head) for head in range(blocks[block].num_heads))
    weights = with_alignments(model, heads).output["alignments"]
    return export_onnx(keras.Model(model.input, {ATTENTION: weights}), path, **options)
