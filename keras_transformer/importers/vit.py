"""Vision Transformers in Hugging Face's layout, and their relatives: pixels in, classes out.

A `Vision` lists the tokens before the patches and the classifiers of a family. The model is
pre-norm, with learned positions. It reads `pixels` (B, H, W, C) from 0 to 255, in the size of the
configuration: `preprocessor_config.json` has mean and standard deviation, and the model begins with
this normalization. Resize pictures first, as that file says.

`load_task` returns the model with the classifier, logits (B, classes), `load_model` the vectors
(B, tokens, D). Neither has a tokenizer. A folder holds `config.json`, `preprocessor_config.json`
and `model.safetensors` (or `pytorch_model.bin`).
"""

import functools
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import layers

from keras_transformer.export.artefact.task_heads import Classification
from keras_transformer.importers import bert_heads, checkpoint, pieces
from keras_transformer.importers.stack import encoder_stack
from keras_transformer.importers.tables import (
    Arrays,
    HeadReader,
    Loader,
    ModelLoader,
    Origin,
    Table,
)
from keras_transformer.layers.pooling import ClassToken
from keras_transformer.layers.signals import PatchEmbedding
from keras_transformer.training.distribution import Model
from keras_transformer.types import StrPath

__all__ = ["load", "load_model", "load_task", "read_head"]

PATCHES = "embeddings.patch_embeddings.projection.weight"
BLOCK, OURS = "encoder.layer.#.", "encoder_block_#/"
TENSORS = {
    PATCHES: "patch_embedding/kernel",
    "embeddings.patch_embeddings.projection.bias": "patch_embedding/bias",
    "embeddings.position_embeddings": "source_positions/embeddings",
    f"{BLOCK}attention.attention.query.*": f"{OURS}self_attention/query",
    f"{BLOCK}attention.attention.key.*": f"{OURS}self_attention/key",
    f"{BLOCK}attention.attention.value.*": f"{OURS}self_attention/value",
    f"{BLOCK}attention.output.dense.*": f"{OURS}self_attention/output",
    f"{BLOCK}layernorm_before.*": f"{OURS}self_attention_norm",
    f"{BLOCK}layernorm_after.*": f"{OURS}feed_forward_norm",
    f"{BLOCK}intermediate.dense.*": f"{OURS}feed_forward/hidden",
    f"{BLOCK}output.dense.*": f"{OURS}feed_forward/output",
    "layernorm.*": "encoder_norm",
}


@dataclass(frozen=True)
class Vision:
    """ViT, or a family of the same form.

    Attributes:
        name: str, the "model_type".
        tokens: dict from the learned vectors before the patches to our layers, in their order.
        heads: dict from the class of `transformers` to its classifiers: from the origin's layer to
            the place of its token. The logits are the mean of all.
    """

    name: str
    tokens: Mapping[str, str] = field(
        default_factory=lambda: {"embeddings.cls_token": "class_token"}
    )
    heads: Mapping[str, Mapping[str, int]] = field(
        default_factory=lambda: {"ImageClassification": {"classifier": 0}}
    )

    @property
    def files(self) -> checkpoint.HuggingFace:
        """The configuration, with its keys."""
        return checkpoint.HuggingFace(
            self.name,
            sizes=("hidden_size", "num_attention_heads", "intermediate_size"),
            layers=("num_hidden_layers",),
            defaults={
                "attention_probs_dropout_prob": 0.0,
                "hidden_act": "gelu",
                "hidden_dropout_prob": 0.0,
                "image_size": 224,
                "layer_norm_eps": 1e-12,
                "num_channels": 3,
                "patch_size": 16,
                "qkv_bias": True,
            },
            fixed={"qkv_bias": True},
        )

    @property
    def origin(self) -> Origin:
        """The loaders of this family."""
        return Origin(self.name, self.read_files, self.make_table, lambda *_: pieces.Vocabulary())

    def read_files(self, folder: pathlib.Path) -> tuple[dict[str, Any], Arrays]:
        """Reads configuration, normalization and tensors."""
        config, tensors = self.files.read_files(folder)
        tensors = {name.removeprefix(f"{self.name}."): array for name, array in tensors.items()}
        return config | read_pixels(folder, config["num_channels"]), flattened(tensors)

    def classifiers(self, config: Mapping[str, Any]) -> Mapping[str, int]:
        """Returns the classifiers of the class that `architectures` names; {} for none."""
        names = [str(name).rpartition("For")[2] for name in config.get("architectures") or []]
        return next((self.heads[name] for name in names if name in self.heads), {})

    def make_table(
        self, config: dict[str, Any], tensors: Arrays, options: dict[str, Any], prefix: str = ""
    ) -> Table:
        """Returns the table of a complete configuration; names of tensors start with `prefix`."""
        heads = self.classifiers(config) if options.pop("head", False) else {}
        unused = ["pooler", *(name for all in self.heads.values() for name in all)]
        spare = [rf"{prefix}{name}\..*" for name in unused if name not in heads]
        size, image = config["patch_size"], config["image_size"]
        names = {**TENSORS, **{theirs: f"{ours}/embedding" for theirs, ours in self.tokens.items()}}
        return Table(
            {
                **{prefix + name: path for name, path in names.items()},
                **{f"{name}.*": name for name in heads},
            },
            sizes={
                "D": config["hidden_size"],
                "F": config["intermediate_size"],
                "P": (image // size) ** 2 + len(self.tokens),
                "X": size * size * config["num_channels"],
                "C": len(bert_heads.labels(config)),
            },
            layers={"encoder": config["num_hidden_layers"]},
            num_heads=config["num_attention_heads"],
            spare="|".join([*spare, rf"{prefix}embeddings\.mask_token"]),
            model=functools.partial(_make_model, config, [*self.tokens.values()], heads),
            settings={
                "dropout": config["hidden_dropout_prob"],
                "attention_dropout": config["attention_probs_dropout_prob"],
                "activation": checkpoint.activation(config, "hidden_act"),
                "epsilon": config["layer_norm_eps"],
            },
        )

    def load_task(self, folder: StrPath, **options: Any) -> tuple[keras.Model, None]:
        """Loads the model with the classifier that `config.json` names, and no tokenizer.

        Args:
            folder: as in `load_model`.
            **options: as in `load_model`.

        Returns:
            `(model, None)`; the model returns logits (B, classes), or vectors without a classifier.
        """
        return self.origin.load(folder, head=True, **options)

    def read_head(self, folder: StrPath) -> Classification | None:
        """Returns the head of an export of `load_task`'s model, or `None` without a classifier."""
        config = self.files.read_config(pathlib.Path(folder))
        return Classification(bert_heads.labels(config)) if self.classifiers(config) else None


def read_pixels(folder: pathlib.Path, channels: int) -> dict[str, list[float]]:
    """Reads the factor and the summand of each channel from `preprocessor_config.json`.

    Raises:
        OSError: the file is missing.
        ValueError: it has no numbers of all channels.
    """
    path = folder / "preprocessor_config.json"
    read = checkpoint.read_json(path)
    factor = read.get("rescale_factor", 1 / 255) if read.get("do_rescale", True) else 1.0
    mean, deviation = [0.0] * channels, [1.0] * channels
    if read.get("do_normalize", True):
        mean, deviation = read.get("image_mean"), read.get("image_std")
    try:
        pairs = [(float(m), float(s)) for m, s in zip(mean, deviation, strict=True)]
        scale = [float(factor) / s for _, s in pairs]
        if len(pairs) != channels:
            raise ValueError
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(
            f"{path} must have image_mean and image_std, {channels} numbers each. Copy it again."
        ) from error
    return {"scale": scale, "offset": [-m / s for m, s in pairs]}


def flattened(tensors: Mapping[str, Any]) -> Arrays:
    """Returns the tensors with patches as rows of pixels, and learned vectors without batch."""
    found = {}
    for name, array in tensors.items():
        if name.endswith(PATCHES) and array.ndim == 4:  # (D, C, size, size)
            array = array.transpose(0, 2, 3, 1).reshape(len(array), -1)
        elif name.endswith(("_token", "position_embeddings")) and array.ndim == 3:
            array = array[0, 0] if name.endswith("_token") else array[0]
        found[name] = array
    return found


def _make_model(
    config: Mapping[str, Any],
    tokens: list[str],
    heads: Mapping[str, int],
    *,
    d_model: int,
    use_bias: bool,
    name: str = "encoder",
    **settings: Any,
) -> keras.Model:
    """Makes the model from `pixels` to the vectors (B, tokens, D), or to logits (B, C)."""
    size, dtype = config["image_size"], settings.get("dtype")
    pixels = keras.Input((size, size, config["num_channels"]), name="pixels")
    scale = layers.Rescaling(config["scale"], config["offset"], dtype=dtype, name="normalization")
    x = PatchEmbedding(d_model, config["patch_size"], dtype=dtype, name="patch_embedding")(
        scale(pixels)
    )
    for token in reversed(tokens):
        x = ClassToken(dtype=dtype, name=token)(x)
    x = encoder_stack(x, length=x.shape[1], **settings)
    if heads:
        classes = len(bert_heads.labels(config))
        logits = [
            layers.Dense(classes, dtype="float32", name=head)(x[:, place])
            for head, place in heads.items()
        ]
        x = layers.Average(dtype="float32", name="logits")(logits) if logits[1:] else logits[0]
    return Model(pixels, x, name=name)


FAMILY = Vision("vit")
ORIGIN = FAMILY.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
load_task: Loader = FAMILY.load_task
read_head: HeadReader = FAMILY.read_head
