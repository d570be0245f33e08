"""
Masks
=====

A mask is boolean, and ``True`` means "may attend". Rows are queries, columns are keys.
"""

import numpy as np
from matplotlib.figure import Figure

import keras_transformer as kt

ids = np.array([[5, 7, 11, 13, 17, 0, 0]])  # 0 is padding
padding = np.asarray(kt.padding_mask(ids))  # (1, 7)
causal = np.asarray(kt.causal_mask(7))
both = np.asarray(kt.combine_masks(padding[:, None, :], causal))

# %%
# The encoder hides padding, the causal mask hides what comes later, and the decoder needs both.

masks = {
    "padding_mask": np.broadcast_to(padding, (7, 7)),
    "causal_mask": causal.reshape(7, 7),
    "both combined": both.reshape(7, 7),
}
picture = Figure(figsize=(9, 3.2), layout="constrained")
for panel, (name, mask) in zip(picture.subplots(1, 3), masks.items(), strict=True):
    panel.imshow(mask, cmap="Greens", vmin=0, vmax=1.4)
    panel.set(title=name, xlabel="key", ylabel="query")
    panel.set_xticks(np.arange(7))
    panel.set_yticks(np.arange(7))
    panel.set_xticks(np.arange(0.5, 6), minor=True)
    panel.set_yticks(np.arange(0.5, 6), minor=True)
    panel.grid(which="minor", color="white")
    panel.tick_params(which="minor", length=0)
