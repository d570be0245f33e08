"""Text: the tokenizer, and reading of text files. No framework is imported.

`tokenizer` encodes and decodes; `tokenizer_training` trains its SentencePiece model;
`tokenizer_sampling` draws segmentations; `tokenizer_graph` puts it into a TensorFlow graph;
`json_tokenizer` reads tokenizers of BERT and GPT-2. `corpora` reads lines of text files, `words`
joins the pieces of given words. A new kind of tokenizer is one file here.
"""
