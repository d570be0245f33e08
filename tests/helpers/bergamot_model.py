"""A small random model in Bergamot's format, and its forward pass in NumPy.

Shapes: S source length, T target length, V vocabulary, D d_model, H heads.
"""

import io

import numpy as np
import sentencepiece
from helpers import reference
from support.marian_writer import write_model

from keras_transformer.importers.marian_binary import read_model
from keras_transformer.importers.marian_shortlist import MAGIC

LINES = [
    f"{a} {b} {c} ."
    for a in ("um", "dois", "três")
    for b in ("cão", "gato", "homem")
    for c in ("corre", "dorme", "come pão", "vê o mar")
]
D, H, F, DEPTHS = 12, 3, 19, (2, 2)
CONFIG = {
    "type": "transformer",
    "dim-emb": D,
    "enc-depth": DEPTHS[0],
    "dec-depth": DEPTHS[1],
    "dim-vocabs": [60, 60],
    "transformer-heads": H,
    "transformer-dim-ffn": F,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "relu",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-decoder-autoreg": "rnn",
    "dec-cell": "ssru",
    "tied-embeddings-all": True,
    "transformer-train-position-embeddings": False,
    "transformer-tied-layers": [],
}


def vocabulary(lines=LINES, size=60, **options):
    """Trains a SentencePiece model, by default with Bergamot's ids.

    They are </s> 0, <unk> 1, no begin and no padding.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1, **options},
    )
    return model.getvalue()


def shapes(vocab_size):
    """Returns `{name: shape}` of all tensors."""
    attention = {f"W{letter}": (D, D) for letter in "qkvo"}
    attention |= {f"b{letter}": (1, D) for letter in "qkvo"}
    attention |= {"Wo_ln_scale": (1, D), "Wo_ln_bias": (1, D)}
    norm = {"ffn_ln_scale": (1, D), "ffn_ln_bias": (1, D)}
    network = {"W1": (D, F), "b1": (1, F), "W2": (F, D), "b2": (1, D), **norm}
    unit = {"W": (D, D), "Wf": (D, D), "bf": (1, D), **norm}
    found = {"Wemb": (vocab_size, D), "decoder_ff_logit_out_b": (1, vocab_size)}
    for side, depth, parts in (
        ("encoder", DEPTHS[0], {"self": attention, "ffn": network}),
        ("decoder", DEPTHS[1], {"rnn": unit, "context": attention, "ffn": network}),
    ):
        for block in range(1, depth + 1):
            for part, names in parts.items():
                found |= {f"{side}_l{block}_{part}_{name}": s for name, s in names.items()}
    return found


def arrays(vocab_size, seed=9):
    """Returns random weights by name, scaled so that texts differ."""
    draw = np.random.default_rng(seed).normal
    made = {}
    for name, shape in shapes(vocab_size).items():
        if shape[0] == 1:
            made[name] = name.endswith("scale") + draw(scale=0.3, size=shape)
        else:
            scale = 0.5 * D**-0.5 if name == "Wemb" else 2.0 * shape[0] ** -0.5
            made[name] = draw(scale=scale, size=shape)
    return made


# Marian's formulas.
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "swish": lambda x: x / (1.0 + np.exp(-x)),
    "gelu": lambda x: x / (1.0 + np.exp(-1.702 * x)),
}


def write_folder(folder, seed=9):
    """Writes the files that Firefox downloads."""
    folder.mkdir(exist_ok=True)
    model = vocabulary()
    (folder / "vocab.pten.spm").write_bytes(model)
    size = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    write_model(folder / "model.pten.intgemm.alphas.bin", arrays(size, seed), CONFIG)
    return folder


def translated(folder, lines, limit):
    """Returns the reference's translations. More than five differ, to tell models apart."""
    path = str(folder / "vocab.pten.spm")
    theirs, oracle = sentencepiece.SentencePieceProcessor(model_file=path), Reference(folder)
    found = [oracle.translate([*theirs.encode(line), 0], limit) for line in lines]
    assert len({tuple(row) for row in found}) > 5
    return [theirs.decode([i for i in row if i]) for row in found]


class Reference:
    """Marian's forward pass in float64, for one sentence of Marian's ids."""

    def __init__(self, folder):
        self.arrays, config = read_model(folder / "model.pten.intgemm.alphas.bin")
        self.activation = ACTIVATIONS[config["transformer-ffn-activation"]]

    def translate(self, source, limit):
        """Returns the likeliest token of each step, except <unk>, up to </s>."""
        memory, states, position = self.encode(source), np.zeros((DEPTHS[1], D)), 0
        x, found = np.zeros(D), []
        while len(found) < limit and (not found or found[-1] != 0):
            logits, states = self.step(x, position, memory, states)
            logits[1] = -np.inf
            found.append(int(logits.argmax()))
            x, position = self.embed(found[-1]), position + 1
        return found

    def embed(self, ids):
        return np.sqrt(D) * self.arrays["Wemb"][ids].astype(np.float64)

    def encode(self, source):
        x = self.embed(source) + positions(np.arange(len(source)))  # (S, D)
        for block in range(1, DEPTHS[0] + 1):
            name = f"encoder_l{block}"
            x = self.norm(f"{name}_self_Wo", x + self.attend(f"{name}_self", x, x))
            x = self.network(f"{name}_ffn", x)
        return x

    def step(self, x, position, memory, states):
        x = (x + positions(np.array([position]))[0])[None]  # (1, D)
        after = []
        for block, state in enumerate(states, 1):
            name = f"decoder_l{block}"
            a = {part: self.arrays[f"{name}_rnn_{part}"] for part in ("W", "Wf", "bf")}
            gate = 1.0 / (1.0 + np.exp(-(x @ a["Wf"] + a["bf"])))
            after.append((gate * state + (1.0 - gate) * (x @ a["W"]))[0])
            x = self.norm(f"{name}_rnn_ffn", x + np.maximum(after[-1], 0.0))
            x = self.norm(f"{name}_context_Wo", x + self.attend(f"{name}_context", x, memory))
            x = self.network(f"{name}_ffn", x)
        logits = x @ self.arrays["Wemb"].T + self.arrays["decoder_ff_logit_out_b"]
        return logits[0], np.array(after)

    def attend(self, name, x, memory):
        def heads(vectors, letter):
            rows = vectors @ self.arrays[f"{name}_W{letter}"] + self.arrays[f"{name}_b{letter}"]
            return rows.reshape(len(vectors), H, D // H).swapaxes(0, 1)  # (H, T, D / H)

        found, _ = reference.attention(heads(x, "q"), heads(memory, "k"), heads(memory, "v"))
        joined = found.swapaxes(0, 1).reshape(len(x), D)  # (T, D)
        return joined @ self.arrays[f"{name}_Wo"] + self.arrays[f"{name}_bo"]

    def network(self, name, x):
        a = {part: self.arrays[f"{name}_{part}"] for part in ("W1", "b1", "W2", "b2")}
        inner = self.activation(x @ a["W1"] + a["b1"]) @ a["W2"] + a["b2"]
        return self.norm(f"{name}_ffn", x + inner)

    def norm(self, name, x):
        gamma, beta = (self.arrays[f"{name}_ln_{part}"][0] for part in ("scale", "bias"))
        return reference.layer_norm({"gamma": gamma, "beta": beta}, x, 1e-6)


def positions(numbers):
    """Marian's sinusoids (T, D): sines, then cosines, frequencies 10000^(-i / (D/2 - 1))."""
    frequencies = 10000.0 ** (-np.arange(D // 2) / (D // 2 - 1))
    angles = numbers[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def shortlist_bytes(first=2, rows=((5, 9), (), (7,), *[()] * 17)):
    """Returns a lexical shortlist: the ids below `first`, and a row of ids for each source id."""
    offsets = np.cumsum([0, *map(len, rows)]).astype("<u8")
    ids = np.array([i for row in rows for i in row], "<u4")
    rest = np.array([first, first, len(offsets), len(ids)], "<u8").tobytes()
    rest += offsets.tobytes() + ids.tobytes()
    total = 0
    for word in np.frombuffer(rest[: len(rest) // 8 * 8], "<u8").tolist():
        total ^= (word + 0x9E3779B9 + (total << 6) + (total >> 2)) % 2**64
    return np.array([MAGIC, total], "<u8").tobytes() + rest


def candidates(shortlist, source_ids, vocab_size):
    """Returns the ids that Marian allows for a source, in order.

    The lowest other ids fill them up to a multiple of 8.
    """
    chosen = np.zeros(vocab_size, bool)
    chosen[: shortlist.first_count] = True
    for id in source_ids:
        chosen[shortlist.ids[shortlist.offsets[id] : shortlist.offsets[id + 1]]] = True
    chosen[np.flatnonzero(~chosen)[: -chosen.sum() % 8]] = True
    return np.flatnonzero(chosen)
