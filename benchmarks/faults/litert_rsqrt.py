"""LiteRT's Rsqrt of 0 is NaN with its default delegate, where TensorFlow and C give infinity."""

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter, OpResolverType

x = np.zeros([1, 8], "float32")
function = tf.function(tf.math.rsqrt, input_signature=[tf.TensorSpec([1, 8])])
content = tf.lite.TFLiteConverter.from_concrete_functions(
    [function.get_concrete_function()]
).convert()
found = {}
for name in ("BUILTIN", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"):
    interpreter = Interpreter(
        model_content=content, experimental_op_resolver_type=OpResolverType[name]
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    found[name] = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
print(found)
assert np.isposinf(found["BUILTIN"]).all(), found
