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
from keras_transformer.plots.confusion import plot_confusion
from keras_transformer.plots.curves import plot_learning_curve
from keras_transformer.plots.matrix import plot_matrices, plot_matrix
from keras_transformer.plots.panels import Panel, plot_panels
from keras_transformer.plots.pictures import plot_picture_attention
from keras_transformer.plots.series import plot_forecast
from keras_transformer.plots.spectrogram import plot_spectrogram
from keras_transformer.plots.trees import plot_trees
from keras_transformer.plots.words import plot_words

__all__ = [
    "Panel",
    "attention_maps",
    "block_attention",
    "plot_attention",
    "plot_confusion",
    "plot_forecast",
    "plot_learning_curve",
    "plot_matrices",
    "plot_matrix",
    "plot_panels",
    "plot_picture_attention",
    "plot_spectrogram",
    "plot_translation",
    "plot_trees",
    "plot_words",
    "token_labels",
]
