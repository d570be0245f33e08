"""
Learning rate
=============

The paper raises the rate for 4,000 steps and then lowers it with the inverse square root of the
step (section 5.3).
"""

import numpy as np
from matplotlib.figure import Figure

import keras_transformer as kt

steps = np.arange(1, 20_001, 50)
picture = Figure(figsize=(7, 3.4), layout="constrained")
panel = picture.subplots()
for d_model, warmup_steps in ((512, 4000), (512, 8000), (1024, 4000)):
    schedule = kt.InverseSquareRootWarmup(d_model, warmup_steps)
    rates = [float(schedule(step)) for step in steps]
    panel.plot(steps, rates, label=f"d_model={d_model}, warmup_steps={warmup_steps}")
panel.set(xlabel="step", ylabel="learning rate")
panel.legend()
panel.grid(alpha=0.3)
