"""Learning curves, and the import of `plots` without Matplotlib."""

import numpy as np
import pytest
from helpers import processes

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

from keras_transformer import plots  # noqa: E402


def test_training_and_validation_share_a_panel():
    history = {"loss": [5, 3, 2], "perplexity": [9], "val_loss": [4, None], "val_bleu": [np.inf, 7]}
    figure = plots.plot_learning_curve(history)
    shown = {
        panel.get_title(): {line.get_label(): list(line.get_ydata()) for line in panel.lines}
        for panel in figure.axes
    }
    assert list(shown) == ["loss", "perplexity", "bleu"]
    assert shown["loss"]["training"] == [5, 3, 2]
    assert shown["perplexity"] == {"training": [9]}
    np.testing.assert_array_equal(shown["loss"]["validation"], [4, np.nan])
    np.testing.assert_array_equal(shown["bleu"]["validation"], [np.nan, 7])
    assert figure.axes[1].get_yscale() == "log"


@pytest.mark.parametrize("history", [{}, {"loss": []}])
def test_a_history_without_an_epoch_is_an_error(history):
    with pytest.raises(ValueError, match="Did `fit` finish an epoch"):
        plots.plot_learning_curve(history)


@pytest.mark.full
def test_only_drawing_needs_matplotlib():
    code = """
import sys
sys.modules["matplotlib"] = None
from keras_transformer import plots
try:
    plots.plot_learning_curve({"loss": [1.0]})
except ImportError as error:
    print(error)
"""
    assert "matplotlib" in processes.run("-c", code).stdout
