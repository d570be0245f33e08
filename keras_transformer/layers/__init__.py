"""Layers: the parts of the Transformer, written in `keras.ops` alone (sections 3.1 to 3.5).

Contents: one file for each part, and `base.py` with the base class. Attention and blocks define the
whole forward pass (`call`) and one step with a cache (`step`) beside each other.

Imports: no framework but Keras, so that every layer runs on TensorFlow, JAX and PyTorch. To add a
new layer, write a subclass of `BaseLayer` in the file of its kind and import it in
`keras_transformer/__init__.py`.
"""
