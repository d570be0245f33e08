"""Attention as one operator: `MultiHeadAttention` of ONNX Runtime, with a cache or with a mask.

Ours is written with heads of their own, (B, T, H, K), and takes about fifteen nodes: transposed
queries, keys and values, scaled scores, a softmax, a product with the values and a transpose back.
The operator takes queries, keys and values with heads side by side, (B, T, H K), and adds to the
scores a bias of shape (B or 1, 1, T, S).

Shapes: B batch, T queries, S keys, H heads, K size of a head.
"""

from keras_transformer.export.graph.fuse_rule import (
    Rule,
    are_heads_first,
    heads,
    integers,
    is_order,
    join_heads,
    split_heads,
)
from keras_transformer.export.graph.nodes import MICROSOFT, attribute, number


def cached_attention_rules(known):
    """Self-attention of the new tokens of a step to themselves and their cached past."""
    rules = (CachedAttention, SharedCacheAttention, SlotAttention)
    return [rule.rule(known) for rule in rules]


def attention_rules(known):
    """Attention of an encoder, of a decoder to its source, of a whole target."""
    rules = (MaskedAttention, MemoryAttention, PlainAttention, KerasAttention)
    return [rule.rule(known) for rule in rules]


class CachedAttention(Rule):
    """A step's self-attention, where the cache grows by the new keys and values.

    before   keys = Concat(past_key, heads_first(key)), values likewise
             output = heads_last(Softmax(scale query keys^T) values)
    after    output, keys, values = MultiHeadAttention(query, key, value, past_key, past_value)
    """

    def pattern(self, op, query, key, value, past_key, past_value, scale):
        return _attend_past(op, query, key, value, past_key, past_value, scale, None)

    def check(self, context, query, key, value, scale, output, negative_bias=None, **rest):
        sizes = [heads(self.known, item) for item in (query, key, value)]
        bias = self.known.dims.get(negative_bias)
        moved = (rest["queries"], rest["new_keys"], rest["new_values"], output)
        return (
            None not in sizes
            and len(set(sizes)) == 1
            and (negative_bias is None or bool(bias) and len(bias) == 4 and bias[1] == 1)
            and _are_over_keys(scale, rest["columns"], rest["weights"])
            and are_heads_first(*moved)
        )

    def rewrite(self, op, query, key, value, past_key, past_value, scale, negative_bias=None, **_):
        count, size = heads(self.known, query)
        bias = None if negative_bias is None else _negative(op, negative_bias)
        output, keys, values = op.MultiHeadAttention(
            *(join_heads(op, item, self.known) for item in (query, key, value)), None, None, bias,
            past_key, past_value,
            num_heads=count, scale=number(scale), _domain=MICROSOFT, _outputs=3,
        )  # fmt: skip
        return split_heads(op, output, count, size), keys, values


class SharedCacheAttention(CachedAttention):
    """The same with several hypotheses that share the cache of their sentence.

    before   output = heads_last(Softmax(scale query keys^T - negative_bias) values)
    after    output, keys, values = MultiHeadAttention(query, ..., bias=-negative_bias, ...)
    """

    def pattern(self, op, query, key, value, past_key, past_value, scale, negative_bias):
        return _attend_past(op, query, key, value, past_key, past_value, scale, negative_bias)


class SlotAttention(Rule):
    """A step's self-attention to a cache that has all its slots from the start.

    before   output = heads_last(Softmax(scale query keys^T - negative_bias) values)
    after    output = MultiHeadAttention(query, keys, values, bias=-negative_bias)
    """

    def pattern(self, op, query, keys, values, scale, negative_bias):
        queries = op.Transpose(query, _outputs=["queries"])
        columns = op.Transpose(keys, _outputs=["columns"])
        scores = op.Sub(op.MatMul(op.Mul(queries, scale), columns), negative_bias)
        weights = op.Softmax(scores, _outputs=["weights"])
        heads = op.MatMul(weights, values)
        return op.Transpose(heads, _outputs=["output"])

    def check(self, context, query, keys, values, scale, negative_bias, columns, weights, **moved):
        sources = [value.producer() for value in (keys, values)]
        dims = [self.known.dims.get(item) for item in (keys, values)]
        size, bias = heads(self.known, query), self.known.dims.get(negative_bias)
        return (
            all(node is not None and node.op_type in ("ScatterND", "Cast") for node in sources)
            and size is not None
            and all(item is not None and (item[1], item[3]) == size for item in dims)
            and bool(bias and len(bias) == 4 and bias[1] == 1)
            and _are_over_keys(scale, columns, weights)
            and are_heads_first(*moved.values())
        )

    def rewrite(self, op, query, keys, values, scale, negative_bias, **_):
        count, size = heads(self.known, query)
        output = op.MultiHeadAttention(
            join_heads(op, query, self.known), keys, values, None, None,
            _negative(op, negative_bias),
            num_heads=count, scale=number(scale), _domain=MICROSOFT,
        )  # fmt: skip
        return split_heads(op, output, count, size)


def _negative(op, value):
    """The negative of a value: what it is the negative of, or a node."""
    producer = value.producer()
    if producer is not None and producer.op_type == "Mul" and number(producer.inputs[1]) == -1:
        return producer.inputs[0]
    return op.Neg(value)


def _attend_past(op, query, key, value, past_key, past_value, scale, negative_bias):
    """The nodes of attention to a cache; the bias hides other hypotheses' slots."""
    queries = op.Transpose(query, _outputs=["queries"])  # (B, H, T, K)
    keys = op.Concat(past_key, op.Transpose(key, _outputs=["new_keys"]), axis=2)
    values = op.Concat(past_value, op.Transpose(value, _outputs=["new_values"]), axis=2)
    scores = op.MatMul(op.Mul(queries, scale), op.Transpose(keys, _outputs=["columns"]))
    scores = scores if negative_bias is None else op.Sub(scores, negative_bias)
    heads = op.MatMul(op.Softmax(scores, _outputs=["weights"]), values)
    return op.Transpose(heads, _outputs=["output"]), keys, values


class MaskedAttention(Rule):
    """Attention with a mask, to keys and values that are computed here.

    before   output = heads_last(Softmax(scale query key^T - negative_bias) alive value)
    after    output = MultiHeadAttention(query, key, alive value, bias=-negative_bias)

    `alive` is 0 where a query may attend to nothing, so that it gets zeros and not a mean. Where
    that is so for all queries of a sentence alike, the values become zeros; else the output does.
    """

    def pattern(self, op, query, key, value, scale, negative_bias, alive):
        queries = op.Transpose(query, _outputs=["queries"])
        columns = op.Transpose(op.Transpose(key, _outputs=["keys"]), _outputs=["columns"])
        scores = op.Sub(op.MatMul(op.Mul(queries, scale), columns), negative_bias)
        weights = op.Mul(op.Softmax(scores, _outputs=["weights"]), alive)
        heads = op.MatMul(weights, op.Transpose(value, _outputs=["values"]))
        return op.Transpose(heads, _outputs=["output"])

    def check(self, context, query, key, value, scale, negative_bias, alive, **rest):
        moved = (rest["queries"], rest["keys"], rest["values"], rest["output"])
        sizes = [heads(self.known, item) for item in (query, key, value)]
        return (
            None not in sizes
            and len(set(sizes)) == 1
            and are_heads_first(*moved)
            and _are_over_keys(scale, rest["columns"], rest["weights"])
            and _is_masked(self.known, negative_bias, alive)
        )

    def rewrite(self, op, query, key, value, scale, negative_bias, alive, **_):
        values = join_heads(op, value, self.known)
        if self.known.dims[alive][2] == 1:
            values = op.Mul(values, op.Squeeze(alive, integers(op, 1)))
        keys = join_heads(op, key, self.known)
        return _attention(self.known, op, query, keys, values, scale, negative_bias, alive)


class PlainAttention(Rule):
    """Attention without a mask, to keys and values that are computed here.

    before   output = heads_last(Softmax(scale query key^T) value)
    after    output = MultiHeadAttention(query, key, value)
    """

    columns = (0, 1, 3, 2)

    def pattern(self, op, query, key, value, scale):
        queries = op.Transpose(query, _outputs=["queries"])
        columns = op.Transpose(op.Transpose(key, _outputs=["keys"]), _outputs=["columns"])
        scores = op.MatMul(op.Mul(queries, scale), columns)
        weights = op.Softmax(scores, _outputs=["weights"])
        heads = op.MatMul(weights, op.Transpose(value, _outputs=["values"]))
        return op.Transpose(heads, _outputs=["output"])

    def check(self, context, query, key, value, scale, columns, weights, **moved):
        sizes = [heads(self.known, item) for item in (query, key, value)]
        return (
            None not in sizes
            and len(set(sizes)) == 1
            and are_heads_first(*moved.values())
            and _are_over_keys(scale, columns, weights, self.columns)
        )

    def rewrite(self, op, query, key, value, scale, **_):
        count, size = heads(self.known, query)
        output = op.MultiHeadAttention(
            *(join_heads(op, item, self.known) for item in (query, key, value)),
            num_heads=count, scale=number(scale), _domain=MICROSOFT,
        )  # fmt: skip
        return split_heads(op, output, count, size)


class KerasAttention(PlainAttention):
    """The same as Keras' layer writes it: scores are scaled, and keys are moved at once.

    before   output = heads_last(Softmax(scale (query key^T)) value)
    after    output = MultiHeadAttention(query, key, value)
    """

    columns = (0, 2, 3, 1)

    def pattern(self, op, query, key, value, scale):
        queries = op.Transpose(query, _outputs=["queries"])
        scores = op.MatMul(queries, op.Transpose(key, _outputs=["columns"]))
        weights = op.Softmax(op.Mul(scores, scale), _outputs=["weights"])
        heads = op.MatMul(weights, op.Transpose(value, _outputs=["values"]))
        return op.Transpose(heads, _outputs=["output"])


class MemoryAttention(Rule):
    """Attention with a mask, keys and values (B, H, S, K) being ready: those of the source.

    before   output = heads_last(Softmax(scale query keys^T - negative_bias) alive values)
    after    output = MultiHeadAttention(query, keys, alive values, bias=-negative_bias)
    """

    def pattern(self, op, query, keys, values, scale, negative_bias, alive):
        queries = op.Transpose(query, _outputs=["queries"])
        columns = op.Transpose(keys, _outputs=["columns"])
        scores = op.Sub(op.MatMul(op.Mul(queries, scale), columns), negative_bias)
        weights = op.Mul(op.Softmax(scores, _outputs=["weights"]), alive)
        heads = op.MatMul(weights, values)
        return op.Transpose(heads, _outputs=["output"])

    def check(self, context, query, keys, values, scale, negative_bias, alive, **rest):
        dims = [self.known.dims.get(item) for item in (keys, values)]
        size = heads(self.known, query)
        return (
            size is not None
            and all(item is not None and (item[1], item[3]) == size for item in dims)
            and are_heads_first(rest["queries"], rest["output"])
            and _are_over_keys(scale, rest["columns"], rest["weights"])
            and _is_masked(self.known, negative_bias, alive)
        )

    def rewrite(self, op, query, keys, values, scale, negative_bias, alive, **_):
        # Scaling the values can be done once, before the loop, and so is free.
        values = op.Mul(values, alive) if self.known.dims[alive][2] == 1 else values
        return _attention(self.known, op, query, keys, values, scale, negative_bias, alive)


def _are_over_keys(scale, columns, weights, order=(0, 1, 3, 2)):
    """Whether scores are scaled by a number, keys moved in this order, the softmax along keys."""
    return (
        number(scale) is not None
        and is_order(columns, *order)
        and attribute(weights.producer(), "axis", -1) in (-1, 3)
    )


def _is_masked(known, negative_bias, alive):
    """Whether the mask is such as the operator takes: one for all heads."""
    masks = [known.dims.get(item) for item in (negative_bias, alive)]
    return (
        all(item is not None and len(item) == 4 and item[1] == 1 for item in masks)
        and masks[1][3] == 1
    )


def _attention(known, op, query, keys, values, scale, negative_bias, alive):
    """The operator, and zeros for the queries that may attend to nothing: (B, T, H, K)."""
    count, size = heads(known, query)
    bias = _bias(known, op, query, negative_bias)
    output = op.MultiHeadAttention(
        join_heads(op, query, known), keys, values, None, None, bias,
        num_heads=count, scale=number(scale), _domain=MICROSOFT,
    )  # fmt: skip
    if known.dims[alive][2] != 1:
        # Queries of a sentence differ in whether they see anything: those that do not get zeros.
        output = op.Mul(output, op.Squeeze(alive, integers(op, 1)))  # (B, T, 1)
    return split_heads(op, output, count, size)


def _bias(known, op, query, negative_bias):
    """What the operator adds; it does not broadcast along the axis of the queries."""
    bias = _negative(op, negative_bias)
    if known.dims[negative_bias][2] != 1:
        return bias
    if known.dims[negative_bias][3] == known.dims[query][1]:
        rows = op.Shape(negative_bias, start=3)  # the same for every block
    else:
        rows = op.Shape(query, start=1, end=2)
    ones, one = integers(op, 1, 1), integers(op, 1)
    return op.Expand(bias, op.Concat(ones, rows, one, axis=0))
