"""The folder that an export writes: names of its files, its manifest, and the reader.

The exporters write an artefact with these modules, and the runtime reads it with them.

Contents, from the bottom up:

- `messages`: values in error messages;
- `signature`: names of inputs, outputs, axes and files;
- `results`: inputs as a model reads them, and the result of an input, one class for each kind of
  task;
- `task_heads`: the meaning of outputs of a model without a search;
- `manifest`: `artefact.json`, which describes all files;
- `reader`: reads a folder and checks it.

Imports: NumPy, SentencePiece, and of this package the tokenizers and the special ids.
A new head is a class in `task_heads` and its result in `results`.
"""
