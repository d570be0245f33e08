"""Keras masks that an operation dropped on the way, found while a functional model is built.

`a + b` of two Keras tensors, like every function of `keras.ops`, gives a tensor without a mask and
says nothing. Attention would then count padding.
"""

import inspect
import warnings

from keras import layers

# Layers that keep a mask only where all of their inputs have one, and say nothing either.
MERGES = (
    layers.Add, layers.Average, layers.Concatenate, layers.Maximum, layers.Minimum,
    layers.Multiply, layers.Subtract,
)  # fmt: skip


class MaskReader(layers.Layer):
    """A layer whose results would count padding if its input's Keras mask was lost.

    It refuses such an input while a functional model is built. A model that was saved before loads,
    with a warning.
    """

    _loaded = False
    reads = ("inputs",)  # arguments of a call whose padding must stay known
    explicit_mask = "attention_mask"  # the argument that may take the Keras mask's place

    @classmethod
    def from_config(cls, config):
        layer = super().from_config(config)
        layer._loaded = True
        return layer

    def compute_output_spec(self, *args, **kwargs):
        given = inspect.signature(self.call).bind_partial(*args, **kwargs).arguments
        # A causal mask hides padding on the right, as far as results are read.
        if given.get(self.explicit_mask) is None and not given.get("use_causal_mask"):
            self.refuse_lost_mask(*(given.get(name) for name in self.reads))
        return super().compute_output_spec(*args, **kwargs)

    def refuse_lost_mask(self, *tensors):
        """Refuses tensors that lost their Keras mask; only those of functional models tell."""
        for tensor in tensors:
            culprit = None if tensor is None else lost_at(tensor)
            if culprit is None:
                continue
            message = (
                f"{type(self).__name__} {self.name!r} was passed a tensor whose Keras mask was "
                f"lost in {type(culprit).__name__} {culprit.name!r}, so padding would change its "
                "results. Operations such as `a + b` drop masks: write "
                "keras.layers.Add()([a, b]), where both have one, or pass the mask yourself, such "
                "as keras_transformer.padding_mask(ids)."
            )
            if not self._loaded:
                raise ValueError(message)
            warnings.warn(message, stacklevel=2)


def lost_at(tensor):
    """The operation on the way to a functional model's tensor that dropped a Keras mask, or `None`.

    Follows (B, T, ...) back as long as batch and length stay what they are. Layers that do not
    support masks are left out: Keras warns of them itself.
    """
    pending, seen = [tensor], set()
    while pending:
        output = pending.pop()
        if id(output) in seen or _mask(output) is not None:
            continue
        seen.add(id(output))
        operation, inputs = _origin(output)
        for given in inputs:
            if given.shape[:2] != output.shape[:2]:
                continue
            if _mask(given) is None:
                pending.append(given)
            elif isinstance(operation, MERGES) or not isinstance(operation, layers.Layer):
                return operation
    return None


def _mask(tensor):
    return getattr(tensor, "_keras_mask", None)


def _origin(tensor):
    """The operation that made a tensor of a functional model, and its input tensors."""
    history = getattr(tensor, "_keras_history", None)
    if history is None:  # a tensor of another kind
        return None, ()
    node = history.operation._inbound_nodes[history.node_index]
    return history.operation, node.input_tensors
