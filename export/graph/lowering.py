"""How an operator of TensorFlow is written in ONNX's operators, for `operators`."""

import numpy as np
import tf2onnx


class Writer:
    """Writes ONNX's operators into the graph that tf2onnx converts.

    Args:
        context: tf2onnx's graph.
        node: its node of TensorFlow's operator.
    """

    def __init__(self, context, node):
        self.context, self.node = context, node

    def __call__(self, op: str, *inputs, **attributes) -> str:
        """Adds an operator and returns the name of its first output.

        Args:
            op: the operator's name in ONNX.
            *inputs: names of values, or constants. Python's numbers become int64.
            **attributes: those of the operator.
        """
        names = [item if isinstance(item, str) else self.constant(item) for item in inputs]
        return self.context.make_node(op, names, attr=attributes).output[0]

    def constant(self, value) -> str:
        """The name of a constant."""
        array = value if isinstance(value, np.generic | np.ndarray) else np.array(value, np.int64)
        name = tf2onnx.utils.make_name(self.node.name)
        return self.context.make_const(name, np.asarray(array)).output[0]

    def all(self, op: str, *inputs, count: int) -> list[str]:
        """Adds an operator of several outputs and returns their names."""
        return self.context.make_node(op, list(inputs), output_count=count).output

    def body(self):
        """An empty graph that a node of this graph can hold, such as the body of a Scan."""
        graph = self.context.create_new_graph_with_same_config()
        graph.parent_graph = self.context
        return graph

    def like(self, value: str, number):
        """A number, or several, of the dtype that a value has."""
        kind = tf2onnx.utils.map_onnx_to_numpy_type(self.dtype(value))
        return np.array(number).astype(kind)

    def dtype(self, value: str) -> int:
        """ONNX's number of a value's dtype."""
        return self.context.get_dtype(value)

    def shape(self, value: str):
        """A value's sizes, -1 for an unknown one; `None` where not even their number is known."""
        return self.context.get_shape(value)

    def rank(self, value: str) -> int:
        """Number of axes of a value."""
        return len(self.shape(value))

    def cast(self, value: str, dtype: int) -> str:
        """The value in another dtype, or as it is where that is its own."""
        return value if self.dtype(value) == dtype else self("Cast", value, to=dtype)


def lowered(write):
    """A handler for tf2onnx, as `HANDLERS` holds it.

    Args:
        write: function of a `Writer` and of the names of the inputs. It returns the name of the
            result, or a tuple with one for each output.
    """

    def handler(context, node, name, arguments):
        results = write(Writer(context, node), *node.input)
        results = results if isinstance(results, tuple) else (results,)
        outputs = zip(results, node.output, node.output_dtypes, node.output_shapes, strict=True)
        outputs = list(outputs)
        context.remove_node(node.name)
        for result, output, dtype, shape in outputs:
            shared = {"outputs": [output], "dtypes": [dtype], "shapes": [shape]}
            context.make_node("Identity", [result], **shared)

    return handler, []
