"""Data: from files of text to batches of ids.

What lives here: the tokenizer, reading of corpora, parallel text to train and to measure on
(`text_sets`, and `number_words`, which needs no files), the plan of batches (`batches`, NumPy), the
dataset around it (`dataset`), and one file for each kind of example: pairs of sentences
(`translation`), classes, tags, language models, pairs of texts, answers, features. Sets of other
kinds are in `sets`.

What may be imported: special ids and files of this package, and TensorFlow for pipelines only:
serving reads the tokenizer and has no framework. A new kind of example is one file here, with a
class of its arrays beside `Labelled` in `classification`, and its function in
`keras_transformer/__init__.py`.
"""
