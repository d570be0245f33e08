"""`InverseSquareRootWarmup`, the learning rate of the paper's section 5.3."""

import keras
import numpy as np
import pytest

from keras_transformer.training.schedules import InverseSquareRootWarmup


@pytest.mark.numeric
@pytest.mark.parametrize("step", [1, 2, 3999, 4000, 4001, 100000])
def test_rate_is_the_formula_of_the_paper(step):
    expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    # Keras counts earlier updates. The paper's first step is 1.
    assert float(InverseSquareRootWarmup(512)(step - 1)) == pytest.approx(expected, rel=1e-6)


def test_scale_multiplies_the_curve():
    steps = np.array([0, 6, 12, 40])
    plain = np.asarray(InverseSquareRootWarmup(7, 13)(steps))
    np.testing.assert_allclose(InverseSquareRootWarmup(7, 13, 3.0)(steps), 3 * plain, rtol=1e-6)


def test_both_ways_of_construction_give_one_curve():
    steps = np.arange(60)
    by_width = InverseSquareRootWarmup(7, 13, scale=2.0)(steps)
    by_peak = InverseSquareRootWarmup(peak=2.0 * (7 * 13) ** -0.5, warmup_steps=13)(steps)
    np.testing.assert_allclose(by_width, by_peak, rtol=1e-6)


def test_warmup_rises_in_a_line_from_the_initial_rate_to_the_peak():
    schedule = InverseSquareRootWarmup(peak=0.005, warmup_steps=2000, initial=1e-7)
    assert float(schedule(0)) == pytest.approx(1e-7 + (0.005 - 1e-7) / 2000, rel=1e-5)
    assert float(schedule(999)) == pytest.approx((0.005 + 1e-7) / 2, rel=1e-6)
    assert float(schedule(1999)) == pytest.approx(0.005, rel=1e-6)
    assert float(schedule(7999)) == pytest.approx(0.0025, rel=1e-6)


def test_an_optimizer_uses_step_one_in_its_first_update():
    optimizer = keras.optimizers.SGD(InverseSquareRootWarmup(7, 13))
    weight = keras.Variable(0.0)
    optimizer.build([weight])
    optimizer.apply([keras.ops.convert_to_tensor(1.0)])
    assert -float(weight.numpy()) == pytest.approx(7**-0.5 * 13**-1.5, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either d_model"),
        ({"d_model": 7, "peak": 0.1}, "either d_model"),
        ({"d_model": 7, "warmup_steps": 0}, "warmup_steps must be at least 1"),
        ({"d_model": 7, "initial": 0.1}, "with peak only"),
        ({"peak": 0.1, "scale": 2.0}, "scale the peak itself"),
    ],
)
def test_arguments_that_contradict_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        InverseSquareRootWarmup(**arguments)
