"""Where a translator looks: the attention of its decoder to the source, as an artefact of its own.

Shapes: B batch, S source length, T target length.
"""

import keras
from keras import ops

from keras_transformer.export.onnx_model import export_onnx
from keras_transformer.models import Transformer

ATTENTION = "attention"  # (B, T, S) float32, the output


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
    _, scores = blocks[block](*blocks[block].input, return_attention_scores=True)
    attention = ops.mean(scores["cross"], axis=1)  # (B, T, S)
    return export_onnx(keras.Model(model.input, {ATTENTION: attention}), path, **options)
