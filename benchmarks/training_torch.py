"""`torch.nn.Transformer` as an engine: the same sizes, loss, optimizer and dropout positions.

Shapes: T target length, D d_model.
"""

import time

import torch
from torch import nn
from training_engines import DROPOUT, RATE, SMOOTHING, random_batch


def engine(task):
    """Returns the number of parameters, and a function that trains for a round."""
    torch.manual_seed(task["seed"])
    torch.set_num_threads(task["threads"])
    device = "cuda" if task["device"] == "gpu" else "cpu"
    size = task["size"]
    model = torch_model(task["vocabulary"], task["length"], **size).to(device)
    step = torch.compile(model) if task["device"] == "gpu" else model
    optimizer = torch.optim.Adam(model.parameters(), RATE, (0.9, 0.98), 1e-9, fused=True)
    batches = torch.from_numpy(random_batch(task, task["steps"])).long()
    low = task["precision"] in ("bfloat16", "float16")

    def train():
        start = time.perf_counter()
        for batch in batches.split(task["batch"], dim=1):
            source, target, labels = batch.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=low):
                logits = step(source, target)
            loss = nn.functional.cross_entropy(
                logits.float().flatten(0, 1),
                labels.flatten(),
                ignore_index=0,
                label_smoothing=SMOOTHING,
            )
            loss.backward()
            optimizer.step()
        loss.item()  # waits
        return time.perf_counter() - start

    return sum(weight.numel() for weight in model.parameters()), train


def torch_model(vocabulary, length, num_layers, d_model, num_heads, d_ff):
    """Builds `torch.nn.Transformer` with tied embeddings and the paper's dropout positions."""

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, d_model)
            nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
            options = dict(dim_feedforward=d_ff, dropout=DROPOUT, batch_first=True)
            self.blocks = nn.Transformer(d_model, num_heads, num_layers, num_layers, **options)
            # A post-norm stack already ends with a norm. Only sublayers' outputs have dropout.
            self.blocks.encoder.norm = self.blocks.decoder.norm = None
            for layer in [*self.blocks.encoder.layers, *self.blocks.decoder.layers]:
                layer.dropout = nn.Identity()
                layer.self_attn.dropout = 0.0
                if hasattr(layer, "multihead_attn"):
                    layer.multihead_attn.dropout = 0.0
            self.dropout = nn.Dropout(DROPOUT)
            angles = torch.arange(length)[:, None] / 10000 ** (
                torch.arange(0, d_model, 2) / d_model
            )
            table = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)  # (T, D)
            self.register_buffer("positions", table)
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            self.register_buffer("future", future)  # True: masked out

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * d_model**0.5 + self.positions)

        def forward(self, source, target):
            x = self.blocks(
                self.embed(source),
                self.embed(target),
                tgt_mask=self.future,
                src_key_padding_mask=source == 0,
                tgt_key_padding_mask=target == 0,
                memory_key_padding_mask=source == 0,
                tgt_is_causal=True,
            )
            return x @ self.embedding.weight.T

    return Translator()


def product(size, task):
    """Returns a function that multiplies a square matrix with itself `count` times in sequence."""
    device = "cuda" if task["device"] == "gpu" else "cpu"
    matrix = torch.randn(size, size, device=device) / size**0.5  # products keep their size
    if task["precision"] in ("bfloat16", "float16"):
        matrix = matrix.to(getattr(torch, task["precision"]))

    def multiply(count):
        x = matrix
        for _ in range(count):
            x = x @ matrix
        return float(x[0, 0])  # waits

    return multiply
