"""`InverseSquareRootWarmup`, the learning rate of the paper's section 5.3."""

import keras
import numpy as np
import pytest

from keras_transformer.training.schedules import InverseSquareRootWarmup

STEP = np.array([1, 2, 12, 13, 14, 1000, 1999, 2000, 3999, 4000, 4001, 8000, 100_000])


def paper(d_model, warmup_steps=4000):
    return d_model**-0.5 * np.minimum(STEP**-0.5, STEP * warmup_steps**-1.5)


LINE = 1e-7 + (0.005 - 1e-7) * STEP / 2000  # as other toolkits define it
CURVES = {
    "paper": ({"d_model": 512}, paper(512)),
    "scale": ({"d_model": 7, "warmup_steps": 13, "scale": 3.0}, 3 * paper(7, 13)),
    "peak": ({"peak": 2.0 * (7 * 13) ** -0.5, "warmup_steps": 13}, 2 * paper(7, 13)),
    "initial": (
        {"peak": 0.005, "warmup_steps": 2000, "initial": 1e-7},
        np.where(STEP < 2000, LINE, 0.005 * (STEP / 2000) ** -0.5),
    ),
}


@pytest.mark.numeric
@pytest.mark.parametrize(("arguments", "expected"), CURVES.values(), ids=CURVES)
def test_the_curve_is_the_formula(arguments, expected):
    # Keras counts earlier updates. The paper's first step is 1.
    found = InverseSquareRootWarmup(**arguments)(STEP - 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_optimizer_uses_step_one_in_its_first_update():
    optimizer = keras.optimizers.SGD(InverseSquareRootWarmup(7, 13))
    weight = keras.Variable(0.0)
    optimizer.build([weight])
    optimizer.apply([keras.ops.convert_to_tensor(1.0)])
    assert -float(weight.numpy()) == pytest.approx(7**-0.5 * 13**-1.5, rel=1e-6)
