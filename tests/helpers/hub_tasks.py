"""Small KerasHub tasks: random weights, a tokenizer of a few pieces, no downloads.

Shapes: B texts, S source length, T generated length.
"""

import contextlib
import functools
import io
import types

import keras
import numpy as np
import pytest
import sentencepiece

hub = pytest.importorskip(
    "keras_hub",
    reason="keras-hub, which this test compares with, is missing, or older than Keras",
    exc_type=ImportError,
)

LINES = ["the cat sees the dog", "a dog at 12 , 345 am", "Where is it ?", "it 's"]
NEW = 11  # tokens that are generated
MERGES = ["Ġ t", "h e", "Ġt he", "c a", "ca t", "Ġ d", "o g", "Ġd og", "1 2", "3 4", "Ġ 1"]
LENGTH = 47  # learned positions
DROPOUT = 0.1
LLAMA = types.SimpleNamespace(begin_id=1, end_token_id=2)  # the model here has no tokenizer


def byte_pairs(*special):
    """Returns vocabulary and merges of byte pairs, special tokens first."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = (merge.replace(" ", "") for merge in MERGES)
    pieces = dict.fromkeys([*special, *alphabet, *merged])  # each once
    return {"vocabulary": {piece: id for id, piece in enumerate(pieces)}, "merges": MERGES}


@functools.cache
def sentence_pieces(pad=0, end=1, begin=2, unknown=3):
    """Returns a serialised SentencePiece model."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=made,
        vocab_size=37,
        minloglevel=2,
        model_type="bpe",
        pad_id=pad,
        eos_id=end,
        bos_id=begin,
        unk_id=unknown,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        unk_piece="<unk>",
    )
    return made.getvalue()


def gpt2():
    models = hub.models
    tokenizer = models.GPT2Tokenizer(**byte_pairs("!", "<|endoftext|>"))
    backbone = models.GPT2Backbone(
        tokenizer.vocabulary_size(), 2, 2, 12, 17, DROPOUT, max_sequence_length=LENGTH
    )
    return models.GPT2CausalLM(backbone, models.GPT2CausalLMPreprocessor(tokenizer, LENGTH))


def gemma():
    models = hub.models
    tokenizer = models.GemmaTokenizer(sentence_pieces())
    backbone = models.GemmaBackbone(
        tokenizer.vocabulary_size(),
        num_layers=1,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=12,
        intermediate_dim=34,
        head_dim=6,
        dropout=DROPOUT,
    )
    return models.GemmaCausalLM(backbone, models.GemmaCausalLMPreprocessor(tokenizer, LENGTH))


def llama():
    backbone = hub.models.LlamaBackbone(43, 2, 4, 24, 17, 2)
    return hub.models.LlamaCausalLM(backbone)


def bart():
    models = hub.models
    tokenizer = models.BartTokenizer(**byte_pairs("<s>", "<pad>", "</s>", "<mask>"))
    backbone = models.BartBackbone(
        tokenizer.vocabulary_size(), 1, 2, 12, 17, DROPOUT, max_sequence_length=LENGTH
    )
    preprocessor = models.BartSeq2SeqLMPreprocessor(tokenizer, LENGTH, LENGTH)
    return models.BartSeq2SeqLM(backbone, preprocessor)


@contextlib.contextmanager
def dtype_policy(policy):
    """Sets the dtype policy of layers made in this context."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def drawn(make, policy="float32"):
    """Returns a task whose weights, biases and norms are random. Answers differ; some end."""
    keras.utils.set_random_seed(1)  # for dropout
    with dtype_policy(policy):
        task = make()
    random = np.random.default_rng(5)
    for weight in task.trainable_variables:
        shape, usual = weight.shape, 1.0 if weight.path.endswith(("gamma", "scale")) else 0.0
        size = 0.3 if "embed" in weight.path else 0.2
        if "kernel" in weight.path:  # cross-attention is larger, so that the source matters
            inputs = np.prod(shape[:-1]) if "output" in weight.path else shape[0]
            size = (5.0 if "cross" in weight.path else 1.5) * inputs**-0.5
        weight.assign(usual + random.normal(0, size, shape))
    table = task.backbone.token_embedding.embeddings
    longer = np.ones((table.shape[0], 1))
    longer[getattr(task.preprocessor, "tokenizer", LLAMA).end_token_id] = 2
    table.assign(np.asarray(table) * longer)
    return task


def prompts(model, rows=100, longest=19, seed=0):
    """Returns our ids (B, S) of 1 to `longest` tokens, with the model's begin or end token."""
    random = np.random.default_rng(seed)
    source = model.name.startswith("bart")
    batch = np.zeros((rows, longest + 1), "int32")
    for row, length in enumerate(random.permutation(np.arange(rows) % longest + 1)):
        text = random.integers(4, model.vocab_size, length)
        tokens = [*text, 3] if source else [2, *text]
        batch[row, : len(tokens)] = tokens
    return batch


def generated(model, prompts):
    """Returns our ids of KerasHub's greedy `generate`, one list per prompt, with the end.

    It never generates padding and begin tokens, like our searches.
    """
    task, rows = model.task, len(prompts)
    never = {model.pad_id, model.begin_id} - {model.end_id, None}
    task.compile(sampler=Greedy(never), jit_compile=False)  # compiling takes longer than running
    there, ids = (prompts > 0).astype("int32"), model.hub_ids(prompts)
    names, start = ("token_ids", "padding_mask"), there.sum(axis=1)
    room = np.zeros((rows, NEW), "int32")
    inputs = dict(zip(names, (np.c_[ids, room], np.c_[there, room]), strict=True))
    if hasattr(model, "start"):
        first = np.tile([model.start + [0] * NEW], (rows, 1))
        written = np.tile([[1] * len(model.start) + [0] * NEW], (rows, 1))
        inputs = dict(zip((f"encoder_{name}" for name in names), (ids, there), strict=True))
        inputs |= dict(zip((f"decoder_{name}" for name in names), (first, written), strict=True))
        names, start = (f"decoder_{name}" for name in names), np.full(rows, len(model.start))
    outputs = task.make_generate_function()(inputs, stop_token_ids=[model.end_id])
    ids = model.our_ids(np.asarray(outputs[next(iter(names))]))
    lists = [row[i : i + NEW].tolist() for row, i in zip(ids, start, strict=True)]
    return [row[: row.index(3) + 1] if 3 in row else row for row in lists]


class Greedy(hub.samplers.Sampler):
    """Takes the likeliest token outside `never`."""

    def __init__(self, never):
        super().__init__()
        self.never = sorted(never)

    def get_next_token(self, probabilities):
        kept = 1.0 - np.isin(np.arange(probabilities.shape[-1]), self.never)
        return keras.ops.argmax(probabilities * kept.astype("float32"), axis=-1)
