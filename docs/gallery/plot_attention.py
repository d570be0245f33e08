"""
What heads attend to
====================

A small translator learns to write a row of tokens backwards. Then we look where it looks.
"""

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer import plots

# %%
# Sources are random ids and the end token 3. The target starts with the begin token 2, and its
# labels are one position on.

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
length, vocab_size = 8, 24
ids = random.integers(4, vocab_size, (4096, length))
column = np.ones((len(ids), 1), ids.dtype)
inputs = {
    "source_ids": np.hstack([ids, 3 * column]),
    "target_ids": np.hstack([2 * column, ids[:, ::-1]]),
}
labels = np.hstack([ids[:, ::-1], 3 * column])

model = kt.Transformer(vocab_size, num_layers=1, d_model=32, num_heads=2, d_ff=64, dropout=0.0)
model.compile(
    keras.optimizers.Adam(0.003), loss=kt.SequenceCrossentropy(), metrics=[kt.TokenAccuracy()]
)
history = model.fit(inputs, labels, batch_size=64, epochs=8, verbose=0)
print(f"token accuracy in the last epoch: {history.history['token_accuracy'][-1]:.3f}")

# %%
# A search writes a row that the model has not seen.

source = np.array([[5, 9, 13, 17, 21, 8, 12, 16, 3]])
result = kt.BeamSearch(beam_width=4)(model, source)
print("source:     ", source[0].tolist())
print("translation:", result.ids[0, 0].numpy().tolist())

# %%
# The attention of the decoder to the source. Each row is a step, named by the token written
# before it. The weights lie on the token that is copied next, from the last one to the first.

target = [2, *result.ids[0, 0].numpy().tolist()[:-1]]  # the end token is the last step's result
maps = plots.attention_maps(model, source[0], target)
names = [str(i) for i in source[0]], [str(i) for i in target]
attention = plots.plot_attention(maps["cross"], names[1], names[0], "decoder to source")

# %%
# And how it learned.

curve = plots.plot_learning_curve(history.history)
