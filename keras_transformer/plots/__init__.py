"""Figures: learning curves and attention maps.

Each kind of figure is one file. Functions that draw return a `matplotlib.figure.Figure`, made
without pyplot, so no display is needed and nothing stays open. `figure.savefig(path)` writes it.

Imports: NumPy, Keras, layers and models; Matplotlib only inside the functions that draw. To add a
new kind of figure, write one file here and import its function below.
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
