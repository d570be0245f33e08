"""Figures of the tasks, one file for each kind. Functions return a `matplotlib.figure.Figure`."""

from support.plots.boxes import plot_boxes
from support.plots.confusion import plot_confusion
from support.plots.matrix import plot_matrices, plot_matrix
from support.plots.outcomes import plot_outcomes
from support.plots.panels import Panel, plot_panels
from support.plots.piano_roll import plot_piano_rolls
from support.plots.pictures import plot_picture_attention, plot_picture_rows
from support.plots.roads import plot_roads
from support.plots.series import plot_anomalies, plot_forecast, plot_series_attention
from support.plots.spectrogram import plot_sounds, plot_spectrogram
from support.plots.trees import plot_trees
from support.plots.words import plot_words

__all__ = [
    "Panel",
    "plot_anomalies",
    "plot_boxes",
    "plot_confusion",
    "plot_forecast",
    "plot_matrices",
    "plot_matrix",
    "plot_outcomes",
    "plot_panels",
    "plot_piano_rolls",
    "plot_picture_attention",
    "plot_picture_rows",
    "plot_roads",
    "plot_series_attention",
    "plot_sounds",
    "plot_spectrogram",
    "plot_trees",
    "plot_words",
]
