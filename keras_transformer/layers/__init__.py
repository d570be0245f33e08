"""Layers: the parts of the Transformer, written in `keras.ops` alone (sections 3.1 to 3.5).

What lives here: masks, attention, the feed-forward network, positions, embeddings, the encoder's
and the decoder's block, and the cache with which blocks decode step by step.

What may be imported: Keras and this folder, so that every layer runs on TensorFlow, JAX and
PyTorch. A new layer is one file, and its name in `keras_transformer/__init__.py`.
"""
