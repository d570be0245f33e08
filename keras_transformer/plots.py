"""Figures: attention weights (the paper's appendix) and learning curves.

Matplotlib is imported by the functions that draw. They return a `matplotlib.figure.Figure` made
without pyplot, so no display is needed and nothing stays open. `figure.savefig(path)` writes it.

Shapes: N layers, H heads, T target (query) length, S source (key) length.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.masks import padding_mask
from keras_transformer.layers.ssru import RecurrentDecoderBlock
from keras_transformer.layers.stack import encoded
from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID

SPECIAL_LABELS = {PAD_ID: "<pad>", BEGIN_ID: "<s>", END_ID: "</s>"}


def attention_maps(model, source_ids=None, target_ids=None):
    """Attention weights of every head and layer for one sentence, without dropout.

    Args:
        model: `Transformer`, `TransformerEncoder` or `CausalTransformer`.
        source_ids: S integers, for models with an encoder. For an encoder of the caller's what it
            reads, one array or a dict of them, without batch axis.
        target_ids: T integers that start with the begin id 2, for models with a decoder.

    Returns:
        Dict of float32 arrays, one for each use of attention that the model has (section 3.2.3):
        "encoder" (N, H, S, S), "decoder" (N, H, T, T), "cross" (N, H, T, S). Row i holds the
        weights of query i, and they sum to 1. The weights of padded keys are 0. What happens inside
        an encoder of the caller's is not known, so that "encoder" is missing there; a recurrent
        decoder has no "decoder".

    Raises:
        ValueError: if ids are missing that the model needs, or are not one sentence.

    Example:

    >>> model = Transformer(vocab_size=23, num_layers=2, d_model=16, num_heads=4, d_ff=32)
    >>> attention_maps(model, [5, 7, 3], [2, 11])["cross"].shape
    (2, 4, 2, 3)
    """
    maps, memory, memory_mask = {}, None, None
    if getattr(model, "source_inputs", None):
        source = keras.tree.map_structure(lambda x: ops.convert_to_tensor(x)[None], source_ids)
        memory = encoded(model.encoder, source)  # (1, S, D)
        memory_mask = getattr(memory, "_keras_mask", None)
    elif getattr(model, "encoder", None):
        source_ids = _one_row(source_ids, "source_ids")  # (1, S)
        memory_mask = padding_mask(source_ids)
        memory = model.encoder.embed(source_ids)
        maps["encoder"] = []
        for block in model.encoder.blocks:
            memory = _attending(block, memory, maps["encoder"], attention_mask=memory_mask)
        memory = model.encoder.norm(memory)
    if getattr(model, "decoder", None):
        target_ids = _one_row(target_ids, "target_ids")  # (1, T)
        x = model.decoder.embed(target_ids)
        masks = {"attention_mask": padding_mask(target_ids), "use_causal_mask": True}
        maps["decoder"] = []
        if memory is not None:
            maps["cross"] = []
        for block in model.decoder.blocks:
            x = _attending(
                block, x, maps["decoder"], maps.get("cross"), memory, memory_mask, **masks
            )
    return {name: np.concatenate(weights) for name, weights in maps.items() if weights}


def _one_row(ids, name):
    ids = np.asarray([] if ids is None else ids)
    if ids.ndim != 1 or not ids.size:
        raise ValueError(
            f"{name} must be the ids of one sentence, a sequence of integers, but its shape is "
            f"{ids.shape}. For a row of a batch pass ids[i]."
        )
    return ops.convert_to_tensor(ids[None], "int32")


def _attending(block, x, own, cross=None, memory=None, memory_mask=None, **masks):
    """One block's output (1, T, D); adds its weights (1, H, T, S) to the lists."""

    def attend_self(x):
        if isinstance(block, RecurrentDecoderBlock):
            return block.self_attention(x, attention_mask=masks["attention_mask"])
        own.append(_as_float32(block.self_attention.attention_weights(x, x, **masks)))
        return block.self_attention(x, x, **masks)

    def attend_memory(x):
        weights = block.cross_attention.attention_weights(x, memory, attention_mask=memory_mask)
        cross.append(_as_float32(weights))
        return block.cross_attention(x, memory, attention_mask=memory_mask)

    # The block's forward pass with sublayers that also keep their weights.
    x = block.residual(x, attend_self, block.self_attention_norm)
    if memory is not None:
        x = block.residual(x, attend_memory, block.cross_attention_norm)
    return block.residual(x, block.feed_forward, block.feed_forward_norm)


def _as_float32(weights):
    return ops.convert_to_numpy(ops.cast(weights, "float32"))


def token_labels(tokenizer, ids):
    """The text of each id, to label an axis with. A space is "·"; special ids have names."""
    texts = tokenizer.decode([[int(i)] for i in ids])
    return [SPECIAL_LABELS.get(int(i), text or "·") for i, text in zip(ids, texts, strict=True)]


def plot_attention(weights, row_labels, column_labels, title=None):
    """Draws attention weights as a grid of heat maps: one row per layer, one column per head.

    Args:
        weights: (N, H, T, S), one of the arrays that `attention_maps` returns.
        row_labels: T strings, one per query, from top to bottom.
        column_labels: S strings, one per key, from left to right.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: if `weights` has another rank, or its shape does not fit the labels.

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
            f"the last two by the number of labels, but its shape is {weights.shape}."
        )
    layers, heads, rows, columns = weights.shape
    size = (heads * (1 + 0.17 * columns), layers * (0.8 + 0.17 * rows) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for layer, head in np.ndindex(layers, heads):
        panel = panels[layer, head]
        panel.imshow(weights[layer, head], vmin=0, vmax=1, cmap="Blues", aspect="auto")
        panel.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=7)
        # In a label, "$" would start a formula.
        panel.set_xticks(range(columns), [_plain(t) for t in column_labels], rotation=90)
        panel.set_yticks(range(rows), [_plain(t) for t in row_labels])
        panel.tick_params(labelsize=6, length=0)
    figure.suptitle(title)
    return figure


def _plain(text):
    return text.replace("$", r"\$")


def plot_translation(model, tokenizer, source, translation, title=None, target_tokenizer=None):
    """Draws which source tokens the decoder of a `Transformer` attends to while it translates.

    Args:
        model: `Transformer`.
        tokenizer: `Tokenizer`.
        source: str, the sentence.
        translation: str, its translation, by the model or by a person.
        title: str or `None`.
        target_tokenizer: `Tokenizer` of the translation. Defaults to `None`: `tokenizer`.

    Returns:
        `matplotlib.figure.Figure`, as `plot_attention` draws it.

    Example:

    >>> plot_translation(model, tokenizer, "a cat", "eine Katze").savefig("a.png")  # doctest: +SKIP
    """
    target_tokenizer = target_tokenizer or tokenizer
    source_ids = [*tokenizer.encode(source), END_ID]
    target_ids = [BEGIN_ID, *target_tokenizer.encode(translation)]
    weights = attention_maps(model, source_ids, target_ids)["cross"]
    labels = token_labels(target_tokenizer, target_ids), token_labels(tokenizer, source_ids)
    return plot_attention(weights, *labels, title)


def plot_learning_curve(history, title=None):
    """Draws each logged quantity by epoch, training and validation in one panel.

    Args:
        history: dict from name to a list with one number per epoch, as `History.history` of
            `model.fit`. `"val_loss"` is drawn beside `"loss"`. Lists may differ in length, and
            numbers that are `None` or not finite leave a gap.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`, one panel per quantity.

    Raises:
        ValueError: if there is nothing to draw.

    Example:

    >>> len(plot_learning_curve({"loss": [5.0, 4.0], "val_loss": [4.5, 4.2], "bleu": [1, 9]}).axes)
    2
    """
    from matplotlib.figure import Figure

    curves = {name: _finite(numbers) for name, numbers in history.items() if len(numbers)}
    quantities = list(dict.fromkeys(name.removeprefix("val_") for name in curves))
    if not quantities:
        raise ValueError(
            f"history must hold a list of numbers for at least one name, got {history!r}. Was no "
            "epoch finished?"
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


def _finite(numbers):
    """Floats, NaN in place of what matplotlib cannot draw."""
    numbers = [math.nan if number is None else float(number) for number in numbers]
    return [number if math.isfinite(number) else math.nan for number in numbers]
