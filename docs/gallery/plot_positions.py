"""
Position encodings
==================

Attention does not see the order of its inputs. The paper adds sines and cosines of geometrically
spaced wavelengths (section 3.5): here for 64 positions and 48 channels.
"""

import numpy as np
from matplotlib.figure import Figure

import keras_transformer as kt

length, d_model = 64, 48
encoding = np.asarray(kt.SinusoidalPositionEncoding()(np.zeros((1, length, d_model), "float32")))[0]


def draw(matrix, x_label, colours):
    """A figure of a matrix whose rows are positions."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(matrix, cmap=colours, aspect="auto")
    panel.set(xlabel=x_label, ylabel="position")
    figure.colorbar(image)
    return figure


encodings = draw(encoding, "channel", "RdBu")

# %%
# The product of two encodings depends on the distance of their positions only. It is largest at
# distance 0, which lets attention look at neighbours.

products = draw(encoding @ encoding.T, "position", "viridis")

# %%
# Rotary positions turn queries and keys instead. Their product, too, depends on the distance only.

rotate = kt.RotaryPositionEncoding()
query, key = np.random.default_rng(0).normal(size=(2, d_model)).astype("float32")
queries = np.asarray(rotate(np.tile(query, (1, length, 1))))[0]
keys = np.asarray(rotate(np.tile(key, (1, length, 1))))[0]
scores = queries @ keys.T
print(f"distance 3, at positions 5 and 50: {scores[5, 2]:.4f}, {scores[50, 47]:.4f}")
