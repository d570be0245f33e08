"""Passes over an ONNX graph: what becomes of a traced model between TensorFlow and the file.

What lives here: the conversion itself, what is known of sizes (`shapes`), simplification, fusion
into the operators of ONNX Runtime, and the reduced precisions. Each pass takes an `onnx_ir` model
and changes it in place.

What may be imported: onnx, onnx_ir, onnxscript and this folder; TensorFlow in `conversion` only. A
new rewrite goes where its kind is, or is one file and one line in `export.onnx_model`.
"""
