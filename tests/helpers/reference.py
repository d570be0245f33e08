"""The whole Transformer in NumPy float64, written from the formulas of "Attention Is All You Need".

This file imports nothing of `keras_transformer`. The tests compare the package with this file, and
its gradients with finite differences of this file. Weights are a dictionary from documented path to
array. `scope(weights, "self_attention")` is the part of the dictionary below one name.

Shapes: B batch, T target length, S source length, H heads, K key size, U value size, D d_model,
F d_ff, V vocabulary. Masks are boolean and True means "may attend".
"""

import math

import numpy as np

PAD = 0


def scope(weights, name):
    """Returns the weights whose path starts with `name/`, without that prefix."""
    inside = {p[len(name) + 1 :]: w for p, w in weights.items() if p.startswith(name + "/")}
    if not inside:
        raise KeyError(f"no weight below {name!r} among {sorted(weights)}")
    return inside


# Masks


def padding_mask(ids):
    return ids != PAD  # (B, S)


def causal_mask(length):
    mask = np.zeros((length, length), bool)
    for i in range(length):
        mask[i, : i + 1] = True  # position i sees positions up to i
    return mask  # (T, T)


# Positions, section 3.5


def sinusoids(length, d_model, offset=0):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same angle)."""
    table = np.zeros((length, d_model))
    for pos in range(length):
        for dim in range(d_model):
            angle = (pos + offset) / 10000.0 ** ((dim - dim % 2) / d_model)
            table[pos, dim] = math.cos(angle) if dim % 2 else math.sin(angle)
    return table  # (T, D)


def rotate(x, offset=0, base=10000.0, size=None):
    """Rotary positions: the plane (2i, 2i+1) turns by pos / base^(2i/size). x: (..., T, K)."""
    length, key_dim = x.shape[-2], size or x.shape[-1]
    out = x.copy()
    for pos in range(length):
        for i in range(key_dim // 2):
            angle = (pos + offset) / base ** (2 * i / key_dim)
            turned = np.exp(1j * angle) * (x[..., pos, 2 * i] + 1j * x[..., pos, 2 * i + 1])
            out[..., pos, 2 * i], out[..., pos, 2 * i + 1] = turned.real, turned.imag
    return out


# Attention, section 3.2


def masked_softmax(scores, mask=None):
    """Returns the masked softmax over the last axis; zeros for fully masked rows."""
    allowed = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    top = np.max(scores, axis=-1, keepdims=True, where=allowed, initial=-1e30)
    powers = np.where(allowed, np.exp(np.minimum(scores - top, 0.0)), 0.0)
    total = powers.sum(-1, keepdims=True)
    return np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)


def linear_bias(length, sources, head, num_heads):
    """Scores of head h fall by 2^(-8 (h + 1) / H) with every step of distance."""
    slope = 2.0 ** (-8.0 * (head + 1) / num_heads)
    return [[-slope * abs(i - j) for j in range(sources)] for i in range(length)]  # (T, S)


def relative_bias(table, length, sources, max_distance, bidirectional):
    """The bias (H, T, S) of T5: ranges of distances that grow, from a table (ranges, H)."""
    biases = np.zeros((table.shape[1], length, sources))
    side = len(table) // 2 if bidirectional else len(table)
    exact = side // 2
    for i in range(length):
        for j in range(sources):
            distance = abs(j - i) if bidirectional else max(i - j, 0)
            bucket = distance
            if distance >= exact:
                growth = math.log(distance / exact) / math.log(max_distance / exact)
                bucket = min(exact + int(growth * (side - exact)), side - 1)
            biases[:, i, j] = table[bucket + (side if bidirectional and j > i else 0)]
    return biases


def attention(query, key, value, mask=None, bias=0.0):
    """softmax(Q K^T / sqrt(d_k) + bias) V and weights. (..., T, K), (..., S, K), (..., S, U)."""
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1]) + bias  # (..., T, S)
    weights = masked_softmax(scores, mask)
    return weights @ value, weights  # (..., T, U), (..., T, S)


def dense(weights, x):
    return x @ weights["kernel"] + weights.get("bias", 0.0)


def multi_head_attention(weights, num_heads, query, value, key=None, mask=None, positions=None):
    """Concat(head_1, ..., head_h) W^O, head by head. mask: (B, T, S), (1, T, S) or (B, 1, S)."""
    key = value if key is None else key
    q, k, v = (
        np.split(dense(scope(weights, name), x), num_heads, axis=-1)
        for name, x in (("query", query), ("key", key), ("value", value))
    )
    biases, sizes = [0.0] * num_heads, (query.shape[1], value.shape[1])
    if "positions/buckets" in weights:
        options = positions.max_distance, positions.bidirectional
        biases = relative_bias(weights["positions/buckets"], *sizes, *options)
    if hasattr(positions, "base"):  # a rotary encoding with options
        q, k = ([rotate(x, 0, positions.base, positions.size) for x in each] for each in (q, k))
    if getattr(positions, "window", None):
        near = abs(np.subtract.outer(*map(np.arange, sizes))) <= positions.window
        mask = near[None] if mask is None else near & mask
    if positions == "rotary":
        q, k = [rotate(x) for x in q], [rotate(x) for x in k]
    if positions == "linear bias":
        biases = [np.array(linear_bias(*sizes, head, num_heads)) for head in range(num_heads)]
    parts = zip(q, k, v, biases, strict=True)
    heads, maps = zip(*(attention(q, k, v, mask, bias) for q, k, v, bias in parts), strict=True)
    output = dense(scope(weights, "output"), np.concatenate(heads, axis=-1))
    return output, np.stack(maps, axis=1)  # (B, T, D), (B, H, T, S)


def additive_attention(weights, query, value, key, mask=None):
    """softmax(v . tanh(W^Q q + W^K k)) V, pair by pair. mask: (B, T, S) or (B, 1, S)."""
    hidden = query @ weights["query/kernel"], key @ weights["key/kernel"]  # (B, T, U), (B, S, U)
    scores = np.zeros((query.shape[0], query.shape[1], key.shape[1]))
    for t in range(query.shape[1]):
        for s in range(key.shape[1]):
            energy = np.tanh(hidden[0][:, t] + hidden[1][:, s])  # (B, U)
            scores[:, t, s] = energy @ weights["score/kernel"][:, 0]
    return masked_softmax(scores, mask) @ value  # (B, T, D)


def recurrent_states(weights, x, mask=None):
    """The states of a recurrent unit (SSRU), position by position. x: (B, T, D), mask: (B, T)."""
    gates = 1.0 / (1.0 + np.exp(-(x @ weights["forget/kernel"] + weights["forget/bias"])))
    updates = x @ weights["input/kernel"]
    state, states = np.zeros((len(x), x.shape[2])), []
    for t in range(x.shape[1]):
        after = gates[:, t] * state + (1.0 - gates[:, t]) * updates[:, t]
        state = after if mask is None else np.where(mask[:, t, None], after, state)
        states.append(state)
    return np.stack(states, axis=1)


# Blocks, sections 3.1 and 3.3

ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "tanh": np.tanh,
}


def feed_forward(weights, x, activation="relu"):
    """max(0, x W1 + b1) W2 + b2; with a gate max(0, x W1 + b1) (x V + c) W2 + b2."""
    hidden = ACTIVATIONS[activation](dense(scope(weights, "hidden"), x))  # (B, T, F)
    if "gate/kernel" in weights:
        hidden = hidden * dense(scope(weights, "gate"), x)
    return dense(scope(weights, "output"), hidden)  # (B, T, D)


def layer_norm(weights, x, epsilon=1e-5):
    """The norm that has these weights: without beta, without mean ("scale"), or none."""
    if not weights:
        return x
    centred = x if "scale" in weights else x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    gamma = weights["scale"] if "scale" in weights else weights["gamma"]
    return centred / spread * gamma + weights.get("beta", 0.0)


def residual(weights, x, sublayer, norm_first, epsilon=1e-5):
    """LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x)) if norm_first."""
    if norm_first:
        return x + sublayer(layer_norm(weights, x, epsilon))
    return layer_norm(weights, x + sublayer(x), epsilon)


def encoder_block(
    weights,
    x,
    mask,
    *,
    num_heads,
    activation="relu",
    norm_first=False,
    positions=None,
    epsilon=1e-5,
):
    """mask: (B, S) or (B, T, S), or None."""
    mask = mask[:, None, :] if mask is not None and mask.ndim == 2 else mask

    def self_attention(x):
        part = scope(weights, "self_attention")
        return multi_head_attention(part, num_heads, x, x, mask=mask, positions=positions)[0]

    def transform(x):
        return feed_forward(scope(weights, "feed_forward"), x, activation)

    norm = {} if norm_first == "feed_forward" else scope(weights, "self_attention_norm")
    x = residual(norm, x, self_attention, norm_first, epsilon)
    return residual(scope(weights, "feed_forward_norm"), x, transform, norm_first, epsilon)


def decoder_block(
    weights,
    x,
    memory,
    mask,
    memory_mask,
    *,
    num_heads,
    activation="relu",
    norm_first=False,
    positions=None,
    epsilon=1e-5,
):
    """mask: (B, T) or (B, T, T); memory_mask: (B, S) or (B, T, S); or None."""
    mask = mask[:, None, :] if mask is not None and mask.ndim == 2 else mask
    if memory_mask is not None and memory_mask.ndim == 2:
        memory_mask = memory_mask[:, None, :]
    past = causal_mask(x.shape[1])[None]  # (1, T, T)
    past = past if mask is None else past & mask  # (B, T, T)

    def self_attention(x):
        part = scope(weights, "self_attention")
        return multi_head_attention(part, num_heads, x, x, mask=past, positions=positions)[0]

    def cross_attention(x):
        part = scope(weights, "cross_attention")
        return multi_head_attention(part, num_heads, x, memory, mask=memory_mask)[0]

    def transform(x):
        return feed_forward(scope(weights, "feed_forward"), x, activation)

    norm = {} if norm_first == "feed_forward" else scope(weights, "self_attention_norm")
    x = residual(norm, x, self_attention, norm_first, epsilon)
    x = residual(scope(weights, "cross_attention_norm"), x, cross_attention, norm_first, epsilon)
    return residual(scope(weights, "feed_forward_norm"), x, transform, norm_first, epsilon)


# Whole models, sections 3.1 and 3.4. `config` is a dictionary of the model's constructor arguments.


def embed(weights, config, ids, side, segment_ids=None):
    """Embeddings times sqrt(d_model), positions, segments, norm. side: "source" or "target"."""
    table = weights[f"{embedding_name(weights, side)}/embeddings"]  # (V, D)
    x = table[ids] * math.sqrt(table.shape[1])  # (B, T, D)
    if kind_of_positions(config) == "sinusoidal":
        x = x + sinusoids(x.shape[1], x.shape[2])
    if kind_of_positions(config) == "learned":
        x = x + weights[f"{side}_positions/embeddings"][: x.shape[1]]
    if segment_ids is not None:
        x = x + weights["segment_embedding/embeddings"][segment_ids]
    if config.get("embedding_norm"):
        x = layer_norm(scope(weights, f"{side}_embedding_norm"), x, config.get("epsilon", 1e-5))
    return x


def logits(weights, x):
    """Returns x E^T of the target's embedding, or x W of an output kernel, plus any bias."""
    part = scope(weights, embedding_name(weights, "target"))
    kernel = part.get("output_kernel", part["embeddings"].T)  # (D, V)
    return x @ kernel + part.get("output_bias", 0.0)  # (B, T, V)


def kind_of_positions(config):
    """Returns the name of a model's position encoding, given as a name or object."""
    names = {"LearnedPositionEncoding": "learned", "LinearBias": "linear bias"}
    given = config.get("positions", "sinusoidal")
    return given if isinstance(given, str) else names[type(given).__name__]


def embedding_name(weights, side):
    """Returns the name of the shared embedding, or of the side's."""
    return "token_embedding" if "token_embedding/embeddings" in weights else f"{side}_embedding"


def block_arguments(config):
    names = ("num_heads", "activation", "norm_first", "epsilon")
    arguments = {name: config[name] for name in names if name in config}
    return {**arguments, "positions": kind_of_positions(config)}


def final_norm(weights, config, name, x):
    """Applies the last norm of pre-norm stacks."""
    if not config.get("norm_first"):
        return x
    return layer_norm(scope(weights, name), x, config.get("epsilon", 1e-5))


def transformer_encoder(weights, config, source_ids, segment_ids=None):
    x = embed(weights, config, source_ids, "source", segment_ids)
    for i in range(config["num_layers"]):
        block = scope(weights, f"encoder_block_{i}")
        x = encoder_block(block, x, padding_mask(source_ids), **block_arguments(config))
    return final_norm(weights, config, "encoder_norm", x)  # (B, S, D)


def transformer(weights, config, source_ids, target_ids):
    memory = transformer_encoder(weights, config, source_ids)
    x = embed(weights, config, target_ids, "target")
    masks = padding_mask(target_ids), padding_mask(source_ids)
    for i in range(config["num_layers"]):
        block = scope(weights, f"decoder_block_{i}")
        x = decoder_block(block, x, memory, *masks, **block_arguments(config))
    x = final_norm(weights, config, "decoder_norm", x)
    return logits(weights, x)


def causal_transformer(weights, config, target_ids):
    x = embed(weights, config, target_ids, "target")
    mask = causal_mask(target_ids.shape[1]) & padding_mask(target_ids)[:, None]  # (B, T, T)
    for i in range(config["num_layers"]):
        block = scope(weights, f"decoder_block_{i}")
        x = encoder_block(block, x, mask, **block_arguments(config))
    x = final_norm(weights, config, "decoder_norm", x)
    return logits(weights, x)
