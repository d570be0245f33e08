"""Layers: the parts of the Transformer, written in `keras.ops` alone (sections 3.1 to 3.5).

Contents: one file for each part, and `base.py`, what all layers share. Attention and the
blocks have the whole forward pass (`call`) and one step with a cache (`step`) beside each other.

Imports: Keras and this folder, so that every layer runs on TensorFlow, JAX and
PyTorch. A new layer is a subclass of `BaseLayer` in the file of its kind, and its name in
`keras_transformer/__init__.py`.
"""
