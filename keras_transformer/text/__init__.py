"""Text: tokenizers, and reading of text files. Imports no framework.

`tokenizer` encodes and decodes. It uses `sentencepiece_model` (training, TensorFlow graphs) and
`tokenizer_sampling` (random segmentations). `json_tokenizer` reads tokenizers of BERT and GPT-2.
`vocabularies` checks that a tokenizer belongs to a model. `corpora` reads and checks lines of text.
`words` maps pieces to words, and `glossary` finds the terms of a line. Put a new kind of tokenizer
into a file here: a class with the methods of `types.AnyTokenizer`.
"""
