"""OpenVINO computes products of int64 in 32 bits, so numbers above 2^31 are wrong."""

import numpy as np
import onnx.parser
import openvino
from onnx.reference import ReferenceEvaluator

model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
square (int64[n] x) => (int64[n] y) {
    prime = Constant<value = int64 {2147483647}>()
    product = Mul(x, x)
    y = Mod(product, prime)
}""")
x = np.array([3, 46341, 2**30 + 7])
(expected,) = ReferenceEvaluator(model).run(None, {"x": x})
opened = openvino.Core().read_model(model.SerializeToString())
found = openvino.Core().compile_model(opened, "CPU")({"x": x})[0]
print("expected", expected, "found", found)
assert (expected == found).all()
