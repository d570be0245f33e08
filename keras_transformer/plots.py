"""Figures: learning curves, and attention maps as in the paper's appendix.

Functions that draw return a `matplotlib.figure.Figure`, made without pyplot, so no display is
needed and nothing stays open. `figure.savefig(path)` writes it. Only they import Matplotlib.

Shapes: B batch, N layers, H heads, T target (query) length, S source (key) length.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.models import TransformerModel
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID
from keras_transformer.text.vocabularies import check_tokenizers, of_both_sides
from keras_transformer.types import Array, Tensor

if TYPE_CHECKING:  # both are optional
    from matplotlib.figure import Figure

    from keras_transformer.text.tokenizer import Tokenizer

__all__ = [
    "attention_maps",
    "block_attention",
    "plot_attention",
    "plot_learning_curve",
    "plot_translation",
    "token_labels",
]

SPECIAL_LABELS: dict[int, str] = {PAD_ID: "<pad>", BEGIN_ID: "<s>", END_ID: "</s>"}


def attention_maps(
    model: TransformerModel, source_ids: Any = None, target_ids: Sequence[int] | Array | None = None
) -> dict[str, Array]:
    """Returns the attention weights of every head and layer for one sentence, without dropout.

    Args:
        model: `Transformer`, `TransformerEncoder` or `CausalTransformer`.
        source_ids: S integers, for models with an encoder; with `num_segments`
            `{"source_ids": ..., "segment_ids": ...}`. With `Transformer(encoder=...)`, the
            encoder's input or a dict of its inputs, without batch axis.
        target_ids: T integers that start with the begin id 2, for models with a decoder.

    Returns:
        Dict of float32 arrays, one for each use of attention in the model (section 3.2.3):
        "encoder" (N, H, S, S), "decoder" (N, H, T, T), "cross" (N, H, T, S). Row i holds the
        weights of query i, which sum to 1. The weights of padded keys are 0. "encoder" is missing
        with `Transformer(encoder=...)`, and "decoder" with a recurrent decoder.

    Raises:
        ValueError: ids that the model needs are missing, or they are not one sentence.

    Example:

    >>> model = Transformer(vocab_size=23, num_layers=2, d_model=16, num_heads=4, d_ff=32)
    >>> attention_maps(model, [5, 7, 3], [2, 11])["cross"].shape
    (2, 4, 2, 3)
    """
    inputs, encoder, decoder = {}, [], []
    if names := getattr(model, "source_inputs", None):
        source = source_ids if isinstance(source_ids, Mapping) else {next(iter(names)): source_ids}
        inputs = {name: ops.convert_to_tensor(values)[None] for name, values in source.items()}
    elif model.encoder_stack is not None:
        encoder = model.encoder_stack.blocks
        source = source_ids if isinstance(source_ids, Mapping) else {"source_ids": source_ids}
        inputs = {name: _one_row(ids, name) for name, ids in source.items()}
    if model.decoder_stack is not None:
        decoder = model.decoder_stack.blocks
        inputs["target_ids"] = _one_row(target_ids, "target_ids")
    if len(inputs) == 1:
        (inputs,) = inputs.values()
    scores = _scores(model, [*encoder, *decoder], inputs)
    maps = {
        "encoder": [weights["self"] for weights in scores[: len(encoder)]],
        "decoder": [weights["self"] for weights in scores[len(encoder) :] if "self" in weights],
        "cross": [weights["cross"] for weights in scores if "cross" in weights],
    }
    return {name: np.concatenate(weights) for name, weights in maps.items() if weights}


def _scores(
    model: keras.Model, blocks: Sequence[keras.Layer], inputs: Any
) -> list[dict[str, Array]]:
    """Returns the attention weights of every call of some of a model's blocks, in order."""
    scores = []

    def record(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        found = call(*args, **{**options, "return_attention_scores": True})
        scores.append({use: _as_float32(weights) for use, weights in found[1].items()})
        return found if options.get("return_attention_scores") else found[0]

    for block in blocks:
        block.call = functools.partial(record, block.call)
    try:
        model(inputs, training=False)
    finally:
        for block in blocks:
            del block.call
    return scores


def block_attention(model: keras.Model, inputs: Any) -> Array:
    """Returns the attention weights of every call of an `EncoderBlock` in a functional model.

    Dropout is off. Use it for your own models, such as a model of image patches. It skips the
    blocks of a nested model: pass the nested model.

    Args:
        model: functional Keras model.
        inputs: a batch of the model's inputs.

    Returns:
        Float32 array (N, B, H, S, S), from the first call to the last.

    Raises:
        ValueError: the model calls no `EncoderBlock`, or blocks with different numbers of heads or
            lengths.

    Example:

    >>> frames = keras.Input((5, 8))
    >>> model = keras.Model(frames, EncoderBlock(num_heads=2, d_ff=16)(frames))
    >>> block_attention(model, np.zeros((3, 5, 8))).shape
    (1, 3, 2, 5, 5)
    """
    blocks = [layer for layer in model.layers if isinstance(layer, EncoderBlock)]
    if not blocks:
        raise ValueError(
            f"{model.name} calls no EncoderBlock. Its layers are {model.layers}. Pass the model "
            "that calls the blocks."
        )
    found = [weights["self"] for weights in _scores(model, blocks, inputs)]
    if len(shapes := {weights.shape for weights in found}) > 1:
        raise ValueError(
            f"The blocks of {model.name} have weights of different shapes, {sorted(shapes)}. Pass "
            "a model that ends before the number of heads or the length changes."
        )
    return np.stack(found)


def _one_row(ids: Any, name: str) -> Tensor:
    ids = np.asarray([] if ids is None else ids)
    if ids.ndim != 1 or not ids.size:
        raise ValueError(
            f"{name} must be the ids of one sentence, a sequence of integers, but its shape is "
            f"{ids.shape}. For row i of a batch, pass ids[i]."
        )
    return ops.convert_to_tensor(ids[None], "int32")


def _as_float32(weights: Tensor) -> Array:
    return ops.convert_to_numpy(ops.cast(weights, "float32"))


def token_labels(tokenizer: "Tokenizer", ids: Sequence[int] | Array) -> list[str]:
    """Returns the text of each id as a label of an axis. A space is "·"; special ids have names."""
    texts = tokenizer.decode([[int(i)] for i in ids])
    return [SPECIAL_LABELS.get(int(i), text or "·") for i, text in zip(ids, texts, strict=True)]


def plot_attention(
    weights: Array,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    title: str | None = None,
) -> "Figure":
    """Draws attention weights as a grid of heat maps: one row per layer, one column per head.

    Args:
        weights: (N, H, T, S), one of the arrays that `attention_maps` returns.
        row_labels: T strings, one per query, from top to bottom.
        column_labels: S strings, one per key, from left to right.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: `weights` is not of rank 4, or its shape does not fit the labels.

    Example:

    >>> figure = plot_attention(np.full((2, 4, 2, 3), 1 / 3), ["<s>", "eine"], ["a", "cat", "</s>"])
    >>> len(figure.axes)
    8
    """
    from matplotlib.figure import Figure

    weights = np.asarray(weights)
    if weights.ndim != 4 or weights.shape[2:] != (len(row_labels), len(column_labels)):
        raise ValueError(
            f"weights must have shape (layers, heads, {len(row_labels)}, {len(column_labels)}), "
            "where the last two sizes are the numbers of labels, but its shape is "
            f"{weights.shape}. Pass one label for each row and column."
        )
    layers, heads, rows, columns = weights.shape
    size = (heads * (1 + 0.17 * columns), layers * (0.8 + 0.17 * rows) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for layer, head in np.ndindex(layers, heads):
        panel = panels[layer, head]
        panel.imshow(weights[layer, head], vmin=0, vmax=1, cmap="Blues", aspect="auto")
        panel.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=7)
        # Matplotlib reads "$" as the start of a formula.
        panel.set_xticks(range(columns), [_plain(t) for t in column_labels], rotation=90)
        panel.set_yticks(range(rows), [_plain(t) for t in row_labels])
        panel.tick_params(labelsize=6, length=0)
    figure.suptitle(title)
    return figure


def _plain(text: str) -> str:
    return text.replace("$", r"\$")


def plot_translation(
    model: TransformerModel,
    tokenizer: "Tokenizer",
    source: str,
    translation: str,
    title: str | None = None,
    target_tokenizer: "Tokenizer | None" = None,
) -> "Figure":
    """Draws which source tokens the decoder of a `Transformer` attends to while it translates.

    Args:
        model: `Transformer`.
        tokenizer: `Tokenizer` of the source.
        source: str, the sentence.
        translation: str, a translation of it by the model or a person.
        title: str or `None`.
        target_tokenizer: `Tokenizer` of the translation. Defaults to `tokenizer`.

    Returns:
        `matplotlib.figure.Figure`, from `plot_attention`.

    Example:

    >>> plot_translation(model, tokenizer, "a cat", "eine Katze").savefig("a.png")  # doctest: +SKIP
    """
    tokenizers = of_both_sides(model, tokenizer, target_tokenizer)
    check_tokenizers(model, tokenizers)
    target_tokenizer = tokenizers["target"]
    source_ids = [*tokenizer.encode(source), END_ID]
    target_ids = [BEGIN_ID, *target_tokenizer.encode(translation)]
    weights = attention_maps(model, source_ids, target_ids)["cross"]
    labels = token_labels(target_tokenizer, target_ids), token_labels(tokenizer, source_ids)
    return plot_attention(weights, *labels, title)


def plot_learning_curve(
    history: Mapping[str, Sequence[float | None]], title: str | None = None
) -> "Figure":
    """Draws each logged quantity by epoch, training and validation in one panel.

    Args:
        history: dict from name to a list with one number per epoch, such as `History.history` of
            `model.fit`. `"val_loss"` is drawn beside `"loss"`. Lists may differ in length, and
            numbers that are `None` or not finite leave a gap.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`, one panel per quantity.

    Raises:
        ValueError: `history` has no numbers.

    Example:

    >>> len(plot_learning_curve({"loss": [5.0, 4.0], "val_loss": [4.5, 4.2], "bleu": [1, 9]}).axes)
    2
    """
    from matplotlib.figure import Figure

    curves = {name: _finite(numbers) for name, numbers in history.items() if len(numbers)}
    quantities = list(dict.fromkeys(name.removeprefix("val_") for name in curves))
    if not quantities:
        raise ValueError(
            f"history must hold a list of numbers for at least one name, got {history!r}. Did "
            "`fit` finish an epoch?"
        )
    figure = Figure(figsize=(4.5 * len(quantities), 3.5), layout="constrained")
    panels = figure.subplots(1, len(quantities), squeeze=False)[0]
    for panel, quantity in zip(panels, quantities, strict=True):
        for name, label in ((quantity, "training"), (f"val_{quantity}", "validation")):
            if name in curves:
                epochs = range(1, len(curves[name]) + 1)
                # A line through one point would be invisible.
                panel.plot(epochs, curves[name], "." if len(epochs) == 1 else "-", label=label)
        if quantity == "perplexity":
            panel.set_yscale("log")
        panel.set_xlabel("epoch")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_title(quantity)
        panel.legend()
    figure.suptitle(title)
    return figure


def _finite(numbers: Sequence[float | None]) -> list[float]:
    """Returns floats, with NaN for values that matplotlib cannot draw."""
    numbers = [math.nan if number is None else float(number) for number in numbers]
    return [number if math.isfinite(number) else math.nan for number in numbers]
