"""An exported folder: what its files are called, what its manifest says, and how it is read.

Exporters write artefacts by these modules, and the runtime reads them.

What lives here, from the bottom up:

- `signature`: names of inputs, outputs, axes and files;
- `results`: what a model without a search gives for an input;
- `heads`: what the outputs of such a model mean: labels, tags, answers or vectors;
- `manifest`: `artefact.json`, which lists all of them;
- `reader`: reads a folder and checks it.

What may be imported: NumPy, SentencePiece, and of this package the tokenizers and the special ids.
A new kind of head is a class in `heads` and its result in `results`.
"""
