"""The engine of Marian, BART, mBART and PEGASUS: encoder-decoders in Hugging Face's layout.

All are the paper's model, with biases in attention and on the logits. They differ in the order of
norm and sublayer, in a norm after the embeddings, and in the positions. An `EncoderDecoder` lists
these differences. For an embedding without the scale √D, the importer divides the matrix by √D and
multiplies the last norm by it.

`forced_bos_token_id` of a folder, such as a language or `<s>`, follows the begin token of every
target. The model has it in `target_start`, so each search starts with it.
"""

import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keras_transformer.importers import checkpoint, fairseq, pieces
from keras_transformer.importers.mapping import our_ids
from keras_transformer.importers.tables import Arrays, Origin, Table, half_sinusoids
from keras_transformer.layers.positions import LearnedPositionEncoding
from keras_transformer.special_ids import BEGIN_ID

TENSORS = {
    **{f"model.{name}": path for name, path in fairseq.NAMES.items()},
    "model.encoder.layernorm_embedding.*": "source_embedding_norm",
    "model.decoder.layernorm_embedding.*": "target_embedding_norm",
    "model.encoder.embed_tokens.weight": "source_embedding/embeddings",
    "model.decoder.embed_tokens.weight": "target_embedding/embeddings",
    "lm_head.weight": "target_embedding/output_kernel",
    "final_logits_bias": "target_embedding/output_bias",
}
SHARED = "model.shared.weight"
TABLES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# Sizes that both sides of our model have in common.
PAIRS = tuple((f"encoder_{name}", f"decoder_{name}") for name in ("attention_heads", "ffn_dim"))
EPSILON = 1e-5
MOST_POSITIONS = 65_536
SPECIAL_IDS = {"<pad>": "pad_token_id", "</s>": "eos_token_id", "<unk>": "unk_token_id"}


@dataclass(frozen=True)
class EncoderDecoder:
    """An encoder-decoder, by its differences from Marian.

    Attributes:
        name: str, the "model_type".
        vocabulary: function from the folder and the configuration to a `Vocabulary`. `check_ids`
            compares the special ids of both.
        unknown: int, the default of `unk_token_id`, which most configurations lack.
        norm_first, embedding_norm: bool, as in `Transformer`.
        learned: bool, whether positions are learned, after fairseq's two unused rows. Otherwise
            they are sinusoids, all sines first, which the file may lack.
    """

    name: str
    vocabulary: Callable[[pathlib.Path, dict[str, Any]], pieces.Vocabulary]
    unknown: int
    norm_first: bool = False
    embedding_norm: bool = False
    learned: bool = False

    @property
    def origin(self) -> Origin:
        """The loaders of this model."""
        return Origin(self.name, self.read_files, self.make_table, self.vocabulary)

    @property
    def files(self) -> checkpoint.HuggingFace:
        """The configuration, with its keys."""
        return checkpoint.HuggingFace(
            self.name,
            sizes=("vocab_size", "d_model", *PAIRS[0], *PAIRS[1]),
            layers=("encoder_layers", "decoder_layers"),
            ids=("pad_token_id", "eos_token_id", "decoder_start_token_id"),
            more_sizes=("decoder_vocab_size",),
            defaults={
                "activation_function": "gelu",
                "attention_dropout": 0.0,
                "decoder_vocab_size": None,
                "dropout": 0.1,
                "forced_bos_token_id": None,
                "max_position_embeddings": 1024,
                "scale_embedding": False,
                "share_encoder_decoder_embeddings": True,
                "tie_word_embeddings": True,
                "unk_token_id": self.unknown,
            },
            fixed={
                "normalize_before": self.norm_first,
                "normalize_embedding": self.embedding_norm,
                "add_final_layer_norm": self.norm_first,
            },
            equal=PAIRS,
        )

    def read_files(self, folder: pathlib.Path) -> tuple[dict[str, Any], Arrays]:
        """Reads and checks configuration and tensors."""
        config, tensors = self.files.read_files(folder)
        config["decoder_vocab_size"] = config["decoder_vocab_size"] or config["vocab_size"]
        if config["max_position_embeddings"] > MOST_POSITIONS:  # the table need not be in the file
            raise ValueError(
                f"{folder / 'config.json'} says "
                f"max_position_embeddings={config['max_position_embeddings']}, but at most "
                f"{MOST_POSITIONS} are supported."
            )
        generation = checkpoint.read_json(folder / "generation_config.json", optional=True)
        if type(generation.get("forced_bos_token_id")) is int:
            config["forced_bos_token_id"] = generation["forced_bos_token_id"]
        for name in POSITIONS:
            if self.learned and name in tensors:
                tensors[name] = tensors[name][fairseq.OFFSET :]
        return config, tensors

    def make_table(
        self, config: dict[str, Any], tensors: Mapping[str, Any], options: dict[str, Any]
    ) -> Table:
        """Returns the table of a complete configuration."""
        d_model, length = config["d_model"], config["max_position_embeddings"]
        special = [config[f"{name}_token_id"] for name in ("pad", "unk", "decoder_start", "eos")]
        sizes, names, copies, last = ["vocab_size", "decoder_vocab_size"], TENSORS, {}, TABLES[1]
        if config["share_encoder_decoder_embeddings"]:
            sizes, names = sizes[:1], {**TENSORS, SHARED: "token_embedding/embeddings"}
            copies, last = dict.fromkeys(TABLES, SHARED), SHARED
        computed, absent = {}, []
        if not self.learned:
            computed = dict.fromkeys(POSITIONS, half_sinusoids(length, d_model, d_model // 2))
        if not self.norm_first:
            absent.append(r"(en|de)coder_norm/\w+")
        if not self.embedding_norm:
            absent.append(r"\w+_embedding_norm/\w+")
        table = Table(
            names,
            sizes={"D": d_model, "F": config["encoder_ffn_dim"], "P": length, "Q": length},
            layers={side: config[f"{side}_layers"] for side in ("encoder", "decoder")},
            num_heads=config["encoder_attention_heads"],
            special=[(config[name], *special) for name in sizes],
            unknown=config["unknown"],
            copies=copies | checkpoint.tied(config, "lm_head.weight", last),
            computed=computed,
            without="|".join(absent),
            scale=1.0 if config["scale_embedding"] else d_model**-0.5,
            settings={
                "dropout": config["dropout"],
                "attention_dropout": config["attention_dropout"],
                "activation": checkpoint.activation(config, "activation_function"),
                "norm_first": self.norm_first,
                "embedding_norm": self.embedding_norm,
                "positions": LearnedPositionEncoding(length, trainable=self.learned),
                "epsilon": EPSILON,
            },
        )
        if (first := config["forced_bos_token_id"]) is not None:
            ours = our_ids(table.orders[-1])
            if first not in ours:
                raise ValueError(
                    f"forced_bos_token_id is {first}, but the vocabulary has {config[sizes[-1]]} "
                    "ids. Check that the files of the folder belong to one model."
                )
            options.setdefault("target_start", (BEGIN_ID, ours[first]))
        return table


def check_ids(
    path: pathlib.Path,
    ids: Mapping[str, int],
    config: Mapping[str, Any],
    special: Mapping[str, str] = SPECIAL_IDS,
) -> Mapping[str, int]:
    """Returns a vocabulary {piece: id}. Raises `ValueError` if a special id is not the model's.

    `special` is a dict from pieces to the names of their ids in the configuration.
    """
    for piece, name in special.items():
        if pieces.special_id(ids, piece) != config[name]:
            raise ValueError(
                f"{path} numbers {piece!r} as {ids[piece]}, but config.json says "
                f"{name}={config[name]}. Check that both files belong to one model."
            )
    return ids


def json_vocabulary(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    begin: str | None = None,
    special: Mapping[str, str] = SPECIAL_IDS,
) -> pieces.Vocabulary:
    """Returns the tokenizer of `tokenizer.json`; `special` is as in `check_ids`.

    The piece `begin` starts every text, if it is given.
    """
    path = folder / "tokenizer.json"
    read = pieces.read_tokenizer(path)
    check_ids(path, pieces.json_ids(read), config, special)
    return pieces.Vocabulary(lambda orders: pieces.renumbered_json(read, orders[0], begin))


def read_pieces(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    file: str,
    names: Callable[[list[str]], list[str]],
    strip: bool = False,
) -> dict[str, Any]:
    """Reads `tokenizer.json`, or makes one from a SentencePiece model.

    Args:
        folder: path of the folder.
        config: the configuration, whose special ids must be the tokenizer's.
        file: name of the SentencePiece model.
        names: function from its pieces to the piece of each of the origin's ids.
        strip: as in `pieces.unigram`.
    """
    path = folder / "tokenizer.json"
    if path.exists():
        read = pieces.read_tokenizer(path)
    else:
        path = folder / file
        model = pieces.read_spm(path)
        read = pieces.unigram(model, names([*pieces.piece_ids(model)]), strip)
    check_ids(path, pieces.json_ids(read), config)
    return read
