"""The linear forecast: what is linear it finds, whatever the level."""

import numpy as np
import pytest
from support.sets.linear_forecast import LinearForecast
from support.sets.series import windows


def test_what_repeats_is_forecast_at_any_level():
    draw = np.random.default_rng(0)
    rows = np.tile(draw.normal(size=(6, 2)), (20, 1))  # two series that repeat after 6 steps
    before, after = windows(rows, past=12, future=4)
    forecast = LinearForecast(before, after, ridge=1e-6)
    found = forecast(before[3:5] + 100)
    np.testing.assert_allclose(found, after[3:5] + 100, atol=1e-3)
    assert found.dtype == np.float32 and forecast.weights.shape == (12, 4)


def test_weights_are_those_of_the_least_squares():
    draw = np.random.default_rng(1)
    past, future = draw.normal(size=(50, 5, 3)), draw.normal(size=(50, 2, 3))
    level = past.mean(axis=1, keepdims=True)
    x = (past - level).transpose(0, 2, 1).reshape(-1, 5)
    y = (future - level).transpose(0, 2, 1).reshape(-1, 2)
    stacked = np.concatenate([x, np.sqrt(7) * np.eye(5)]), np.concatenate([y, np.zeros((5, 2))])
    expected = np.linalg.lstsq(*stacked, rcond=None)[0]
    found = LinearForecast(past, future, ridge=7.0).weights
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 2, 2), (5, 2, 3), (4, 2)])
def test_windows_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match=r"must be \(N, S, F\) and \(N, T, F\)"):
        LinearForecast(np.zeros((4, 6, 3)), np.zeros(shape))
