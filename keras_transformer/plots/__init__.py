"""Figures: what people look at while they train, and at what a trained model does.

What lives here: one file a kind of figure. Every function returns a `matplotlib.figure.Figure` made
without pyplot, so no display is needed and nothing stays open. `figure.savefig(path)` writes it.

What may be imported: NumPy, Keras, layers, trees and special ids of this package; Matplotlib only
inside the functions that draw. A new kind of figure is one file here, and its function below.
"""

from keras_transformer.plots.attention import (
    attention_maps,
    block_attention,
    plot_attention,
    plot_translation,
    token_labels,
)
from keras_transformer.plots.curves import plot_learning_curve

__all__ = [
    "attention_maps",
    "block_attention",
    "plot_attention",
    "plot_learning_curve",
    "plot_translation",
    "token_labels",
]
