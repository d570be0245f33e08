"""Data: from files of text to batches of ids.

What lives here: the tokenizer, reading of corpora, sets to train and to measure on (`text_sets`,
and `number_words`, which needs no files), the plan of batches (`batches`, NumPy), and one file for
each kind of example; today there is one kind, pairs of sentences (`translation`).

What may be imported: special ids and files of this package, and TensorFlow for pipelines only:
serving reads the tokenizer and has no framework. A new kind of example is one file here, and its
function in `keras_transformer/__init__.py`.
"""
