"""Helpers that lower TensorFlow's operators to ONNX's, for `operators`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tf2onnx

# A function of tf2onnx's graph, node, operator name and arguments; and the arguments.
Handler = tuple[Callable[..., None], list[str]]


class Writer:
    """Writes ONNX's operators into the graph that tf2onnx converts.

    Args:
        context: tf2onnx's graph.
        node: its node of TensorFlow's operator.
    """

    def __init__(self, context: Any, node: Any) -> None:
        self.context: Any = context
        self.node: Any = node

    def __call__(self, op: str, *inputs: Any, **attributes: Any) -> str:
        """Adds an operator and returns the name of its first output.

        Args:
            op: the operator's name in ONNX.
            *inputs: names of values, or constants. Python's numbers become int64.
            **attributes: attributes of the operator.
        """
        names = [item if isinstance(item, str) else self.constant(item) for item in inputs]
        return self.context.make_node(op, names, attr=attributes).output[0]

    def constant(self, value: Any) -> str:
        """Adds a constant and returns its name."""
        array = value if isinstance(value, np.generic | np.ndarray) else np.array(value, np.int64)
        name = tf2onnx.utils.make_name(self.node.name)
        return self.context.make_const(name, np.asarray(array)).output[0]

    def all(self, op: str, *inputs: str, count: int) -> list[str]:
        """Adds an operator of several outputs and returns their names."""
        return self.context.make_node(op, list(inputs), output_count=count).output

    def body(self) -> Any:
        """Returns an empty graph for a node of this graph, such as the body of a Loop."""
        graph = self.context.create_new_graph_with_same_config()
        graph.parent_graph = self.context
        return graph

    def like(self, value: str, number: Any) -> np.ndarray:
        """Returns one or more numbers in a value's dtype."""
        kind = tf2onnx.utils.map_onnx_to_numpy_type(self.dtype(value))
        return np.array(number).astype(kind)

    def dtype(self, value: str) -> int:
        """Returns ONNX's number of a value's dtype."""
        return self.context.get_dtype(value)

    def shape(self, value: str) -> Sequence[int] | None:
        """Returns a value's sizes, -1 if unknown; `None` if the rank is unknown."""
        return self.context.get_shape(value)

    def rank(self, value: str) -> int:
        """Returns the number of axes of a value."""
        return len(self.shape(value))

    def cast(self, value: str, dtype: int) -> str:
        """Casts the value unless it has this dtype."""
        return value if self.dtype(value) == dtype else self("Cast", value, to=dtype)


def lowered(write: Callable[..., str | tuple[str, ...]]) -> Handler:
    """Returns a handler for tf2onnx, as in `HANDLERS`.

    Args:
        write: function of a `Writer` and of the names of the inputs. It returns the name of the
            result, or a tuple with one per output.
    """

    def handler(context: Any, node: Any, name: str, arguments: Sequence[str]) -> None:
        results = write(Writer(context, node), *node.input)
        results = results if isinstance(results, tuple) else (results,)
        outputs = zip(results, node.output, node.output_dtypes, node.output_shapes, strict=True)
        outputs = list(outputs)
        context.remove_node(node.name)
        for result, output, dtype, shape in outputs:
            shared = {"outputs": [output], "dtypes": [dtype], "shapes": [shape]}
            context.make_node("Identity", [result], **shared)

    return handler, []
