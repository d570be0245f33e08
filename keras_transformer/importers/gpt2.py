"""GPT-2 in Hugging Face's form, as a `CausalTransformer`.

It is the decoder of the paper without attention to an encoder, pre-norm, with learned positions.
What differs is absorbed: its embedding is not multiplied by √D, so the matrix is smaller here and
the last norm larger; queries, keys and values are cut out of one matrix. It has neither padding nor
an unknown token, and one token, `<|endoftext|>`, begins and ends a text.
"""

import pathlib

from keras_transformer.importers import checkpoint, json_pieces, mapping, vocabulary
from keras_transformer.importers.assignment import assign_weights
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.models import CausalTransformer

# What `config.json` may leave out: the defaults of its class.
DEFAULTS = {
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "layer_norm_epsilon": 1e-5,
    "n_inner": None,
    "resid_pdrop": 0.1,
    "tie_word_embeddings": True,
}
LAYERS = "n_layer"
SIZES = ("vocab_size", "n_embd", "n_head", "n_positions")
SPECIAL = ("bos_token_id", "eos_token_id")
# The bias of rows that GPT-2 does not have. Its logits are about -100, so it must be far below.
NEVER = -1e4
FIXED = {
    "add_cross_attention": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
}


def load_model(folder, order=None, **options):
    """A `CausalTransformer` with the weights of a GPT-2 folder of Hugging Face's.

    Its ids are in our order.

    Args:
        folder: str or path, with `config.json` and `model.safetensors` (or `pytorch_model.bin`).
        order: their id of each of our rows. Defaults to `row_order` of the configuration.
        **options: arguments of `CausalTransformer` that do not change weights, such as `dropout`,
            `dtype` or `name`.

    Returns:
        `CausalTransformer`.

    Raises:
        OSError: a file is missing.
        ValueError: another architecture; a tensor is missing, left over or misshapen; a file that
            is truncated, or a pickle with code in it.

    Example:

    >>> model = load_model("gpt2")  # doctest: +SKIP
    """
    config = read_config(folder)
    tensors, path = checkpoint.read_tensors(folder), pathlib.Path(folder) / "config.json"
    checkpoint.check_sizes(path, config, tensors, (*SIZES, "n_inner"), [LAYERS])
    order = row_order(config) if order is None else order
    arrays = mapped_weights(config, tensors, order)
    model = CausalTransformer(
        len(order),
        config["n_layer"],
        config["n_embd"],
        config["n_head"],
        config["n_inner"],
        **{
            "dropout": config["resid_pdrop"],
            "attention_dropout": config["attn_pdrop"],
            "activation": checkpoint.activation(config, "activation_function"),
            "norm_first": True,
            "positions": LearnedPositionEncoding(config["n_positions"]),
            "use_bias": True,
            "epsilon": config["layer_norm_epsilon"],
            "tie_output": config["tie_word_embeddings"],
            "output_bias": True,
            **options,
        },
    )
    assign_weights(model, arrays)
    return model


def load(folder, **options):
    """As `load_model`, and the tokenizer of the folder's `tokenizer.json`, with our ids.

    Returns:
        `(model, tokenizer)`, the second a `JsonTokenizer`.
    """
    model = load_model(folder, **options)
    known = json_pieces.read_tokenizer(pathlib.Path(folder) / "tokenizer.json")
    return model, json_pieces.renumbered(known, row_order(read_config(folder)))


def read_config(folder):
    """The configuration of a GPT-2 folder, complete and one that our model can do."""
    needed = (*SIZES, LAYERS, *SPECIAL)
    config = checkpoint.read_config(folder, "gpt2", needed, DEFAULTS, FIXED)
    config["n_inner"] = config["n_inner"] or 4 * config["n_embd"]
    return config


def row_order(config):
    """Their ids of our rows, (V,)."""
    begin, end = config["bos_token_id"], config["eos_token_id"]
    return vocabulary.row_order(config["vocab_size"], None, None, begin, end)


def mapped_weights(config, tensors, order):
    """`{our path: array}` of GPT-2's tensors, after a check of their names and shapes."""
    prefix, d_model = "transformer.", config["n_embd"]
    if "wte.weight" in tensors:  # saved without its head
        tensors = {f"{prefix}{name}": array for name, array in tensors.items()}
    table, kernel = f"{prefix}wte.weight", "lm_head.weight"
    shape = config["vocab_size"], d_model
    targets = {table: mapping.Target(shape), **_blocks(config, prefix)}
    length = config["n_positions"]
    positions = mapping.Target((length, d_model), ("target_positions/embeddings",))
    targets[f"{prefix}wpe.weight"] = positions
    targets |= mapping.norm(f"{prefix}ln_f", d_model, "decoder_norm")
    copies = {kernel: table}
    if not config["tie_word_embeddings"]:
        targets[kernel], copies = mapping.Target(shape), {}
    masks = [
        f"{prefix}h.{i}.attn.{name}"
        for i in range(config["n_layer"])
        for name in ("bias", "masked_bias")
    ]
    tensors = mapping.checked(tensors, targets, copies, masks)

    arrays, scale = mapping.mapped(tensors, targets), d_model**0.5
    arrays["token_embedding/embeddings"] = vocabulary.rows(tensors[table], order) / scale
    arrays["token_embedding/output_bias"] = vocabulary.logit_bias(order, never=NEVER)
    if config["tie_word_embeddings"]:  # the logits need what was taken from their matrix
        for name in ("decoder_norm/gamma", "decoder_norm/beta"):
            arrays[name] = arrays[name] * scale
    else:
        arrays["token_embedding/output_kernel"] = vocabulary.rows(tensors[kernel], order).T
    return arrays


def _blocks(config, prefix):
    """`{their name: Target}` of the blocks. Their matrices are (inputs, outputs), as ours are."""
    d_model, d_ff, targets = config["n_embd"], config["n_inner"], {}
    for i in range(config["n_layer"]):
        theirs, ours = f"{prefix}h.{i}", f"decoder_block_{i}"
        inside = [f"{ours}/self_attention/{name}" for name in ("query", "key", "value")]
        for name, inputs, outputs, paths in (
            ("attn.c_attn", d_model, 3 * d_model, inside),
            ("attn.c_proj", d_model, d_model, [f"{ours}/self_attention/output"]),
            ("mlp.c_fc", d_model, d_ff, [f"{ours}/feed_forward/hidden"]),
            ("mlp.c_proj", d_ff, d_model, [f"{ours}/feed_forward/output"]),
        ):
            targets |= mapping.linear(f"{theirs}.{name}", inputs, outputs, *paths, transposed=False)
        targets |= mapping.norm(f"{theirs}.ln_1", d_model, f"{ours}/self_attention_norm")
        targets |= mapping.norm(f"{theirs}.ln_2", d_model, f"{ours}/feed_forward_norm")
    return targets
