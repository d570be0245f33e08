"""Passes over an ONNX graph: what becomes of a traced model between TensorFlow and the file.

What lives here, in the order of an export; in brackets the nodes of a beam search with two layers:

- `conversion`: a Keras function to a graph of ONNX's operators [1,006]; `operators` and
  `integer_operators` write those that tf2onnx converts wrongly or not at all, with `lowering`;
- `simplify`: writes sums as products of matrices (`einsums`), then repeats the passes that change
  no number, which are `folding` (constants), `no_ops` (reshapes and nodes that do nothing) and
  `loops` (what a step need not do) [588];
- `fuse`: blocks into single operators, by the rules of `fuse_attention`, `fuse_norms`,
  `fuse_projections` and `fuse_selections` [322]; where there are convolutions, `channels_first` and
  `fuse_convolutions`;
- `fuse_self_attention` and `flat_rows`, in float32: attention that projects its own inputs, and
  feed-forward networks on matrices, which are faster on CPUs;
- `quantize` and `half`: reduced precisions, 8- or 4-bit integers and float16.

All of them ask `shapes` what is known of sizes, which stands on `sizes` (products of unknowns),
`shape_rules`, `layout_rules` and `window_rules` (a rule for each operator) and `contents` (shapes
as data). `nodes` has the helpers. Each pass takes an `onnx_ir` model and changes it in place.

What may be imported: onnx, onnx_ir, onnxscript and this folder; TensorFlow in `conversion` only. A
new fusion is a rule in the file of its subject, a new precision a function in `quantize`; a new
rewrite of another kind is one file here and one line in `export.onnx_model`.
"""
