"""Greedy and beam search of a `Transformer` in PyTorch, from its weights by path.

This is careful PyTorch code: caches are allocated once, query, key and value share one product,
attention is PyTorch's fused one, and the hypotheses of a sentence share keys and values of
cross-attention. It supports models of the paper's kind (post-norm, sinusoids, ReLU) that never
write an end token, as `gpu.py` makes them. It handles no finished hypotheses.

Shapes: B sentences, W hypotheses of each, S source length, T generated length, H heads, K key size,
D d_model, V vocabulary.
"""

import numpy as np
import torch
from torch.nn import functional

BEGIN, FORBIDDEN = 2, [0, 2]  # pad and begin tokens are never written


class TorchTranslator:
    """One model on one device.

    Args:
        weights: dict from path to array.
        config: the model's constructor arguments.
        device: "cpu" or "cuda".
        dtype: name of the dtype to compute in.
    """

    def __init__(self, weights, config, device="cpu", dtype="float32"):
        self.device, self.dtype = device, getattr(torch, dtype)
        self.layers, self.heads = config["num_layers"], config["num_heads"]
        self.weights = {path: self._tensor(array) for path, array in weights.items()}
        self.table = self.weights["token_embedding/embeddings"]  # (V, D)
        self.scale = self.table.shape[1] ** 0.5
        for name in {path.rsplit("/", 2)[0] for path in weights if "self_attention/" in path}:
            self._join(name, "qkv", ("query", "key", "value"))
        for name in {path.rsplit("/", 2)[0] for path in weights if "cross_attention/" in path}:
            self._join(name, "kv", ("key", "value"))

    def _tensor(self, array):
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, self.dtype)

    def _join(self, name, joined, parts):
        for kind in ("kernel", "bias"):
            found = [self.weights.get(f"{name}/{part}/{kind}") for part in parts]
            if found[0] is not None:
                self.weights[f"{name}/{joined}/{kind}"] = torch.cat(found, dim=-1)

    def _dense(self, name, x):
        bias = self.weights.get(f"{name}/bias")
        return functional.linear(x, self.weights[f"{name}/kernel"].T, bias)

    def _norm(self, name, x):
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        return functional.layer_norm(x, gamma.shape, gamma, beta, 1e-5)

    def _split(self, x, parts):
        """(..., T, parts H K) -> parts tensors (..., H, T, K)."""
        x = x.unflatten(-1, (parts, self.heads, -1))  # (..., T, parts, H, K)
        return [part.transpose(-3, -2) for part in x.unbind(-3)]

    def _feed_forward(self, name, x):
        hidden = functional.relu(self._dense(f"{name}/feed_forward/hidden", x))
        return self._norm(
            f"{name}/feed_forward_norm", x + self._dense(f"{name}/feed_forward/output", hidden)
        )

    def _attend(self, name, x, query, keys, values, mask=None):
        heads = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        output = self._dense(f"{name}/output", heads.transpose(-3, -2).flatten(-2))
        return self._norm(f"{name}_norm", x + output)

    def _positions(self, length):
        d_model = self.table.shape[1]
        exponents = torch.arange(0, d_model, 2, device=self.device) / d_model
        angles = torch.arange(length, device=self.device)[:, None] / 10000**exponents
        return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1).to(self.dtype)  # (T, D)

    def encode(self, source):
        """Encodes `source` (B, S): keys and values (B, H, S, K) of each decoder block, and mask."""
        mask = (source != 0)[:, None, None]  # (B, 1, 1, S)
        x = self.table[source] * self.scale + self._positions(source.shape[1])  # (B, S, D)
        for i in range(self.layers):
            name = f"encoder_block_{i}/self_attention"
            query, keys, values = self._split(self._dense(f"{name}/qkv", x), 3)
            x = self._attend(name, x, query, keys, values, mask)
            x = self._feed_forward(f"encoder_block_{i}", x)
        blocks = [f"decoder_block_{i}/cross_attention/kv" for i in range(self.layers)]
        return [self._split(self._dense(name, x), 2) for name in blocks], mask

    @torch.inference_mode()
    def search(self, source_ids, beam_width, length, length_penalty=0.6):
        """Returns ids (B, W, T) int64, best first, and scores (B, W) float32, as NumPy arrays."""
        source = torch.from_numpy(np.asarray(source_ids)).to(self.device).long()
        memory, mask = self.encode(source)
        rows, width = len(source) * beam_width, beam_width
        shape = (self.layers, 2, rows, self.heads, length, self.table.shape[1] // self.heads)
        cache = torch.zeros(shape, device=self.device, dtype=self.dtype)
        positions = self._positions(length)
        ids = torch.zeros((rows, length), device=self.device, dtype=torch.long)
        scores = torch.full((len(source), width), -torch.inf, device=self.device)
        scores[:, 0] = 0.0  # all hypotheses are equal at first
        last = torch.full((rows,), BEGIN, device=self.device)
        first = torch.arange(len(source), device=self.device)[:, None] * width  # (B, 1)
        for step in range(length):
            x = self.table[last] * self.scale + positions[step]  # (B W, D)
            logits = self._step(x, step, cache, memory, mask) @ self.table.T  # (B W, V)
            logits = logits.float()
            logits[:, FORBIDDEN] = -torch.inf
            totals = functional.log_softmax(logits, -1).unflatten(0, (-1, width))  # (B, W, V)
            totals = (totals + scores[..., None]).flatten(1)  # (B, W V)
            scores, chosen = totals.topk(width)  # (B, W)
            last = (chosen % logits.shape[1]).flatten()
            if width > 1:
                parents = (first + chosen // logits.shape[1]).flatten()  # (B W,)
                cache[..., : step + 1, :] = cache[:, :, parents, :, : step + 1]
                ids = ids[parents]
            ids[:, step] = last
        scores = scores / ((5 + length) / 6) ** length_penalty
        return ids.unflatten(0, (-1, width)).cpu().numpy(), scores.cpu().numpy()

    def _step(self, x, step, cache, memory, mask):
        """Returns the decoder's output (B W, D) for one new token each."""
        for i in range(self.layers):
            name = f"decoder_block_{i}/self_attention"
            query, *new = self._split(self._dense(f"{name}/qkv", x[:, None]), 3)  # (B W, H, 1, K)
            for kept, part in zip(cache[i], new, strict=True):
                kept[:, :, step] = part[:, :, 0]
            keys, values = cache[i, :, :, :, : step + 1]
            x = self._attend(name, x[:, None], query, keys, values)[:, 0]
            name = f"decoder_block_{i}/cross_attention"
            sentences = x.unflatten(0, (len(mask), -1))  # (B, W, D): W queries of one sentence
            (query,) = self._split(self._dense(f"{name}/query", sentences), 1)
            x = self._attend(name, sentences, query, *memory[i], mask).flatten(0, 1)  # (B W, D)
            x = self._feed_forward(f"decoder_block_{i}", x)
        return x
