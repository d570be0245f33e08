"""Learning rates with a linear warm-up and inverse square root decay."""

from typing import Any

import keras
from keras import ops

from keras_transformer.types import Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class InverseSquareRootWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step (section 5.3).

    The paper's formula, with its step_num counted from 1:

        rate = scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)

    Other toolkits take the rates at the start and at the end of the warm-up instead. Pass these as
    `initial` and `peak`. With w = step / warmup_steps,

        rate = initial + (peak - initial) * w    up to step = warmup_steps,
        rate = peak * w^-0.5                     after it.

    Both are the same curve when peak = scale * (d_model * warmup_steps)^-0.5 and initial = 0.
    Keras counts optimizer iterations from 0: the first update has step 1 here. Only updates count:
    under gradient accumulation the rate changes once per update, not once per batch.

    Args:
        d_model: model width. Needed unless `peak` is given.
        warmup_steps: number of updates up to the peak. Defaults to 4000.
        scale: factor on the whole curve. Defaults to 1.
        peak: the rate at step `warmup_steps`, in place of `d_model` and `scale`.
        initial: the rate at the start of the warm-up, with `peak` only. Defaults to 0.

    Call arguments:
        step: integer scalar, the number of updates made before this one.

    Returns:
        Float32 scalar.

    Raises:
        ValueError: neither or both of `d_model` and `peak`, `warmup_steps` below 1, `initial`
            without `peak`, or `scale` with it.

    Example:

    >>> schedule = InverseSquareRootWarmup(512, 4000)
    >>> round(float(schedule(3999)), 7)  # the 4000th update: (512 * 4000)^-0.5
    0.0006988
    """

    def __init__(
        self,
        d_model: int | None = None,
        warmup_steps: int = 4000,
        scale: float = 1.0,
        *,
        peak: float | None = None,
        initial: float = 0.0,
    ) -> None:
        super().__init__()
        if (d_model is None) == (peak is None):
            raise ValueError(
                "Give either d_model (the paper's formula) or peak (the rate at the end of the "
                f"warm-up), but d_model is {d_model} and peak is {peak}."
            )
        if warmup_steps < 1:
            raise ValueError(f"warmup_steps must be at least 1, but it is {warmup_steps}.")
        if peak is None and initial:
            raise ValueError(f"initial={initial} works with peak only; pass peak, too.")
        if peak is not None and scale != 1.0:
            raise ValueError(f"scale={scale} belongs to d_model; with peak, scale the peak itself.")
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale
        self.peak = peak
        self.initial = initial

    def __call__(self, step: Tensor) -> Tensor:
        peak = self.peak
        if peak is None:
            peak = self.scale * (self.d_model * self.warmup_steps) ** -0.5
        progress = (ops.cast(step, "float32") + 1.0) / self.warmup_steps  # counted from 1
        rising = self.initial + (peak - self.initial) * progress
        return ops.where(progress < 1.0, rising, peak * ops.rsqrt(progress))

    def get_config(self) -> dict[str, Any]:
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
            "peak": self.peak,
            "initial": self.initial,
        }
