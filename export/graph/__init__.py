"""Passes over an ONNX graph, between the traced TensorFlow function and the written file.

Contents, in the order of an export, with the number of nodes of a beam search of two layers:

- `conversion`: from a Keras function to a graph of ONNX's operators [1,026]. `tf2onnx_patches`
  converts those that tf2onnx lacks or gets wrong.
- `simplify`: rewrites Einsum as MatMul (`einsums`), then repeats the passes that change no number:
  `folding` (constants, reshapes, nodes without effect) and `loops` (state and work of a step)
  [581].
- `fuse`: blocks become single operators, by `fuse_attention`, `fuse_norms`, `fuse_products` and
  `fuse_patterns` [310].
- `quantize` and `half`: reduced precisions, 8- or 4-bit integers and float16.
- `empty_batches`: rewrites for empty batches. `cuda`: rewrites for GPUs, of float16 and of the
  layout "steps".

All passes read `shapes`, symbolic shape inference. It uses `shape_data` (sizes, and values of
small integer tensors) and `shape_rules` (a rule per operator). `nodes` has the helpers. Each pass
takes an `onnx_ir` model or graph and changes it in place.

Imports: onnx, onnx_ir, onnxscript, `artefact` and this folder; TensorFlow in `conversion` only. A
new fusion is a function or rule in the file of its subject, a new precision a function in
`quantize`. Another kind of rewrite is one file here and one line in `export.onnx_model`.
"""
