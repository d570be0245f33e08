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

picture = Figure(figsize=(9, 3.6), layout="constrained")
left, right = picture.subplots(1, 2)
image = left.imshow(encoding, cmap="RdBu", aspect="auto")
left.set(title="encoding", xlabel="channel", ylabel="position")
picture.colorbar(image, ax=left)

# %%
# The product of two encodings depends on the distance of their positions only. It is largest at
# distance 0, which lets attention look at neighbours.

products = encoding @ encoding.T
image = right.imshow(products, cmap="viridis")
right.set(title="products of encodings", xlabel="position", ylabel="position")
picture.colorbar(image, ax=right)

# %%
# Rotary positions turn queries and keys instead. Their product, too, depends on the distance only.

rotate = kt.RotaryPositionEncoding()
query, key = np.random.default_rng(0).normal(size=(2, d_model)).astype("float32")
queries = np.asarray(rotate(np.tile(query, (1, length, 1))))[0]
keys = np.asarray(rotate(np.tile(key, (1, length, 1))))[0]
scores = queries @ keys.T
print(f"distance 3, at positions 5 and 50: {scores[5, 2]:.4f}, {scores[50, 47]:.4f}")
