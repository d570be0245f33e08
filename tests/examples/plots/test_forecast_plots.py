"""Forecasts are drawn beside what then happened."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

from support import plots  # noqa: E402

PAST, TRUTH = np.arange(10.0).reshape(5, 2), np.arange(6.0).reshape(3, 2)


def test_each_series_has_a_panel(tmp_path):
    forecasts = {"model": TRUTH + 1, "last value": TRUTH * 0}
    figure = plots.plot_forecast(PAST, TRUTH, forecasts, ["load", "oil"], "hour", "kW", "title")
    assert [panel.get_ylabel() for panel in figure.axes] == ["load", "oil"]
    assert figure.axes[-1].get_xlabel() == "hours from the first that is forecast"
    assert (figure.get_supylabel(), figure.get_suptitle()) == ("kW", "title")
    for number, panel in enumerate(figure.axes):
        past, truth, model, last, _ = panel.lines
        np.testing.assert_array_equal(past.get_xdata(), [-5, -4, -3, -2, -1])
        np.testing.assert_array_equal(past.get_ydata(), PAST[:, number])
        for line in (truth, model, last):
            np.testing.assert_array_equal(line.get_xdata(), [0, 1, 2])
        np.testing.assert_array_equal(truth.get_ydata(), TRUTH[:, number])
        np.testing.assert_array_equal(model.get_ydata(), TRUTH[:, number] + 1)
    assert [text.get_text() for text in figure.legends[0].texts] == ["truth", *forecasts]
    figure.savefig(tmp_path / "forecast.png")
    assert (tmp_path / "forecast.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("past, truth", [(PAST[:, :1], TRUTH), (PAST, TRUTH[:, 0])])
def test_series_and_names_must_fit(past, truth):
    with pytest.raises(ValueError, match="a column for each of"):
        plots.plot_forecast(past, truth, {}, ["load", "oil"])


@pytest.mark.parametrize("forecasts", [{"a": TRUTH[1:]}, dict.fromkeys("abcde", TRUTH)])
def test_forecasts_must_fit(forecasts):
    with pytest.raises(ValueError, match=r"at most 4 arrays of shape \(3, 2\)"):
        plots.plot_forecast(PAST, TRUTH, forecasts, ["load", "oil"])
