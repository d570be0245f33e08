"""Data: from lines and arrays to batches.

`batches` plans the batches (NumPy), `dataset` makes a `tf.data.Dataset` of them. One file for each
kind of example: sentence pairs (`translation`), classes, tags, language models, pairs of texts,
answers, features.

TensorFlow is imported for pipelines only. A new kind of example is one file here, with a class of
its arrays, and its function in `keras_transformer/__init__.py`.
"""
