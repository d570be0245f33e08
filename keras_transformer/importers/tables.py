"""The engine of all origins: a table from the origin's tensors to the weights of our models.

A `Table` is data: names of tensors, sizes, the order of the special rows, and the arguments of our
model. `Table.build` accounts for every tensor, makes the model and assigns its weights.
`Table.write` reads the same table backwards. An `Origin` has the readers of a folder and the
function that fills its table.

In the names of a table, `@` is a side, "encoder" or "decoder". `#` is the number of a block, and
`*` a weight of a layer, such as "weight" or "bias". Braces list layers of ours that the origin
stores in one tensor, such as `self_attention/{query,key,value}`.

Letters of axes: D d_model, H all heads together, F d_ff, V and T ids of the source and the target,
P and Q positions of the source and the target, G segments, C classes, M mel bands, K the size of a
convolution, R ranges of distances and N heads of a position bias, X the numbers of a patch, E the
encoder's vectors, which are d_model by default, S numbers of a sample, U the vectors between two
convolutions, L, W and Y the sizes of three convolutions.
"""

import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np

from keras_transformer.importers import checkpoint
from keras_transformer.importers.mapping import (
    NEVER,
    assign_weights,
    logit_bias,
    misfits,
    row_order,
    rows,
)
from keras_transformer.importers.pieces import Vocabulary
from keras_transformer.models import Transformer
from keras_transformer.text.vocabularies import with_tokenizers
from keras_transformer.types import Array, Ids, StrPath

# The axes of our weights by the end of their paths. Of layers: the axes of the kernel. The bias has
# the last of them.
AXES = {
    "cross_attention/key": "EH",
    "cross_attention/value": "EH",
    "attention/query": "DH",
    "attention/key": "DH",
    "attention/value": "DH",
    "attention/output": "HD",
    "attention/input": "DD",  # of the recurrent unit, like "forget"
    "attention/forget": "DD",
    "feed_forward/hidden": "DF",
    "feed_forward/gate": "DF",
    "feed_forward/output": "FD",
    "token_embedding/embeddings": "VD",
    "source_embedding/embeddings": "VD",
    "target_embedding/embeddings": "TD",
    "segment_embedding/embeddings": "GD",
    "positions/buckets": "RN",
    "source_positions/embeddings": "PD",
    "target_positions/embeddings": "QD",
    "output_kernel": "DT",
    "output_bias": "T",
    "patch_embedding": "XD",
    "_token/embedding": "D",
    "convolution_1": "KMD",
    "convolution_2": "KDD",
    "filters_1": "LSD",
    "filters_2": "WDU",
    "filters_3": "YUD",
    "pooler": "DD",
    "widening": "ED",
    "transform": "DE",
    "words": "EV",
}
# From the name of a weight to the origin's, where `*` stands. These are PyTorch's.
PARTS = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
Arrays = dict[str, Array]
# The functions of an origin; see the methods of `Origin`.
ModelLoader: TypeAlias = Callable[..., Any]
Loader: TypeAlias = Callable[..., tuple[Any, Any]]
RowOrders: TypeAlias = Callable[[StrPath], list[Ids]]
HeadReader: TypeAlias = Callable[[StrPath], Any]
Special = tuple[int, int | None, int | None, int | None, int | None]


class Place(NamedTuple):
    """Where a tensor of the origin goes.

    Attributes:
        paths: paths of our weights. Several paths split the tensor along our last axis.
        axes: letters of the axes of each of our weights.
        transposed: whether the origin stores the axes in the reverse order.
    """

    paths: tuple[str, ...]
    axes: str
    transposed: bool


@dataclass(frozen=True)
class Table:
    """A model of an origin as data.

    Attributes:
        tensors: dict from the origin's name of a tensor or layer to our path.
        sizes: dict from the letter of an axis to its length. V and T follow from `special`, and H
            and E are D by default.
        layers: dict from "encoder" and "decoder" to the number of blocks.
        num_heads: int.
        special: of the source, and of the target if its vocabulary is separate, the arguments of
            `mapping.row_order`: number of ids, then the ids of padding, unknown, begin and end.
        unknown: as many numbers of further copies of the unknown token.
        copies: dict from tensors that may exist to the tensor that each must equal. The first
            stands in for a missing second, and has no place in our model.
        spare: pattern of tensors that may exist and are not used.
        computed: dict from tensors to arrays that replace them where the origin lacks them.
        without: pattern of paths that this model does not have.
        narrow: pattern of paths whose axis D is the axis E.
        parts: dict from our "kernel", "bias", "gamma" and "beta" to the origin's names.
        transposed: whether the origin stores kernels as (outputs, inputs); ours are (inputs,
            outputs).
        first_block: the origin's number of the first block.
        channels: the origin's channel for each of ours, (D,) integers, or `None` if all are equal.
        scale: factor for the embeddings. An origin that does not multiply them by √D needs D^-0.5.
            If the embedding also computes the logits, the last norm is divided by it.
        logit_scale: factor by which the origin multiplies the vectors before the logits.
        never: logit bias of rows that the origin lacks.
        finish: function that changes the arrays by our paths, after all checks.
        model: class or function of our model.
        settings: its arguments beside the sizes.
    """

    tensors: Mapping[str, str]
    sizes: Mapping[str, int]
    layers: Mapping[str, int] = field(default_factory=dict)
    num_heads: int = 1
    special: Sequence[Special] = ()
    unknown: Sequence[int] = (0, 0)
    copies: Mapping[str, str] = field(default_factory=dict)
    spare: str = ""
    computed: Mapping[str, Array] = field(default_factory=dict)
    without: str = ""
    narrow: str = ""
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    transposed: bool = True
    first_block: int = 0
    channels: Ids | None = None
    scale: float = 1.0
    logit_scale: float = 1.0
    never: float = NEVER
    finish: Callable[[Arrays], None] | None = None
    model: Callable[..., keras.Model] = Transformer
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def orders(self) -> list[Ids]:
        """The origin's ids of our rows, (V,) each, of the source and of a separate target."""
        return [
            row_order(*ids, more) for ids, more in zip(self.special, self.unknown, strict=False)
        ]

    @property
    def logits(self) -> str:
        """Our path of the embedding whose layer computes the logits."""
        return "token_embedding" if len(self.special) == 1 else "target_embedding"

    def places(self) -> dict[str, Place]:
        """Returns a dict from the name of each tensor to its place. Copies have none."""
        found = {}
        for theirs, ours in self._rows():
            start, _, names = ours.partition("{")
            for name, part in self._parts(theirs, ours):
                paths = tuple(f"{start}{one}{part}" for one in names.rstrip("}").split(","))
                if name not in self.copies and not re.fullmatch(self.without, paths[0]):
                    flipped = self.transposed and paths[0].endswith("/kernel")
                    flipped = flipped or paths[0].endswith("/output_kernel")
                    axes = axes_of(paths[0])
                    if re.fullmatch(self.narrow, paths[0]):
                        axes = axes.replace("D", "E")
                    found[name] = Place(paths, axes, flipped)
        return found

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Yields the pairs of names for each side and each block."""
        for theirs, ours in self.tensors.items():
            for side in self.layers if "@" in ours else [""]:
                name, path = theirs.replace("@", side), ours.replace("@", side)
                if len(self.special) == 1:
                    path = re.sub("^(source|target)_embedding/", "token_embedding/", path)
                for i in range(self.layers.get(path.partition("_")[0], 0) if "#" in path else 1):
                    number = str(i + self.first_block)
                    yield name.replace("#", number), path.replace("#", str(i))

    def _parts(self, theirs: str, ours: str) -> list[tuple[str, str]]:
        """Returns the tensors of a row, and the ends of their paths."""
        if "*" not in theirs:
            return [(theirs, "")]
        parts = ("gamma", "beta") if ours.endswith("_norm") else ("kernel", "bias")
        return [(theirs.replace("*", self.parts[part]), f"/{part}") for part in parts]

    def shape(self, place: Place) -> tuple[int, ...]:
        """Returns the shape of the origin's tensor at a place."""
        sizes = {"H": self.sizes["D"], "E": self.sizes["D"], **self.sizes}
        if self.special:
            sizes |= {"V": self.special[0][0], "T": self.special[-1][0]}
        *first, last = (sizes[axis] for axis in place.axes)
        shape = (*first, last * len(place.paths))
        return shape[::-1] if place.transposed else shape

    def read(self, tensors: Mapping[str, Array]) -> Arrays:
        """Returns a dict from our path to array, with rows and channels in our order.

        Args:
            tensors: dict from the origin's name to array.

        Raises:
            ValueError: a tensor is missing, left over, misshapen or differs from its original. The
                message names each.
        """
        places, arrays = self.places(), {}
        for name, array in self._checked(tensors, places).items():
            array = array.T if places[name].transposed else array
            parts = np.split(array, len(places[name].paths), axis=-1)
            arrays.update(zip(places[name].paths, parts, strict=True))
        bias = arrays.pop(f"{self.logits}/output_bias", None)
        orders: dict[str, Ids] = {}
        if self.channels is not None:
            orders = {"D": self.channels, "E": self.channels}
        if self.special:
            orders |= {"V": self.orders[0], "T": self.orders[-1]}
        arrays = {path: _ordered(array, axes_of(path), orders) for path, array in arrays.items()}
        for name in ("token_embedding", "source_embedding", "target_embedding"):
            if f"{name}/embeddings" in arrays:
                arrays[f"{name}/embeddings"] = arrays[f"{name}/embeddings"] * self.scale
        if self.special and "decoder" in self.layers:
            self._add_logits(arrays, bias)
        if self.finish is not None:
            self.finish(arrays)
        return arrays

    def _add_logits(self, arrays: Arrays, bias: Array | None) -> None:
        """Adds the bias of the logits, and undoes the scale of the embedding if it is tied."""
        arrays[f"{self.logits}/output_bias"] = logit_bias(self.orders[-1], bias, self.never)
        kernel, factor = f"{self.logits}/output_kernel", self.logit_scale
        if kernel in arrays:
            arrays[kernel] = arrays[kernel] * factor
            return
        last = f"decoder_block_{self.layers['decoder'] - 1}/feed_forward_norm/"
        norms = [path for path in arrays if path.startswith("decoder_norm/")]
        for path in norms or [path for path in arrays if path.startswith(last)]:
            arrays[path] = arrays[path] * (factor / self.scale)

    def _checked(self, tensors: Mapping[str, Array], places: Mapping[str, Place]) -> Arrays:
        """Checks names and shapes of all tensors, and returns the tensors that have a place."""
        computed = {name: self.computed[name] for name in places if name in self.computed}
        tensors = {**computed, **tensors}
        for copy, original in self.copies.items():
            if copy in tensors:
                tensors.setdefault(original, tensors[copy])
        shapes = {name: self.shape(place) for name, place in places.items()}
        for name, shape in shapes.items():
            if name in tensors and tensors[name].shape == (1, *shape):  # a vector as a row
                tensors[name] = tensors[name][0]
        spare = [name for name in tensors if re.fullmatch(self.spare, name)]
        problems = misfits(tensors, shapes, [*self.copies, *spare])
        problems += [
            f"{name} is not equal to {original}, which it is tied to"
            for name, original in self.copies.items()
            if {name, original} <= {*tensors}
            and not np.array_equal(tensors[name], tensors[original])
        ]
        if problems:
            raise ValueError(
                f"{len(problems)} tensors of the checkpoint differ from its configuration: "
                f"{'; '.join(problems)}."
            )
        return {name: tensors[name] for name in places}

    def write(
        self, arrays: Mapping[str, Array], orders: Mapping[str, Ids], zeros: bool = False
    ) -> Arrays:
        """Returns a dict from the origin's name to array, the inverse of `read`.

        Args:
            arrays: dict from our path to array.
            orders: dict from the letter of an axis to our number of each of the origin's rows or
                channels. Other axes stay.
            zeros: whether biases that our model does not have become zeros, or are left out.
        """
        tensors: Arrays = {}
        for name, place in self.places().items():
            known = [path for path in place.paths if path in arrays]
            parts = [_ordered(arrays[path], place.axes, orders) for path in known]
            if parts:
                array = np.concatenate(parts, axis=-1)
                tensors[name] = np.ascontiguousarray(array.T if place.transposed else array)
            elif zeros:
                tensors[name] = np.zeros(self.shape(place), np.float32)
        return tensors

    def make(self, options: Mapping[str, Any]) -> keras.Model:
        """Makes the model with random weights.

        Args:
            options: arguments of the model that replace the table's.
        """
        orders, depths = self.orders, tuple(self.layers.values())
        settings = {
            "num_layers": depths if len(depths) > 1 else depths[0],
            "d_model": self.sizes["D"],
            "num_heads": self.num_heads,
            "d_ff": self.sizes["F"],
            "use_bias": True,
        }
        if "decoder" in self.layers:
            paths = [place.paths[0] for place in self.places().values()]
            settings["tie_output"] = f"{self.logits}/output_kernel" not in paths
            settings["output_bias"] = True
        if orders:
            settings["vocab_size"] = len(orders[0])
        if len(orders) > 1:
            settings["target_vocab_size"] = len(orders[1])
        return self.model(**settings | {**self.settings, **options})

    def build(self, tensors: Mapping[str, Array], options: Mapping[str, Any]) -> Any:
        """Makes the model with the weights of an origin, after a check of all tensors.

        Args:
            tensors: dict from the origin's name to array.
            options: as in `make`.
        """
        arrays = self.read(tensors)
        model = self.make(options)
        assign_weights(model, arrays)
        return model


def axes_of(path: str) -> str:
    """Returns the letters of the axes of one of our weights."""
    layer, _, part = path.rpartition("/")
    if part in ("gamma", "beta", "scale"):
        return "D"
    name = layer if part in ("kernel", "bias") else path
    axes = next((axes for end, axes in AXES.items() if name.endswith(end)), "DC")  # a head
    return axes[-1] if part == "bias" else axes


def _ordered(array: Array, axes: str, orders: Mapping[str, Ids]) -> Array:
    """Returns an array with the axes of these letters in another order."""
    for number, axis in enumerate(axes):
        if axis in orders:
            array = rows(array, orders[axis], number)
    return array


def shape_of(tensors: Mapping[str, Array], name: str, rank: int, advice: str) -> tuple[int, ...]:
    """Returns the shape of a tensor from which sizes are read."""
    if name not in tensors or tensors[name].ndim != rank:
        kind = "matrix" if rank == 2 else f"array of {rank} axes"
        raise ValueError(f"{name} is missing or no {kind}. {advice}")
    return tensors[name].shape


def equal(tensors: Mapping[str, Array], pairs: Mapping[str, str]) -> dict[str, str]:
    """Returns the pairs of a copy and its original that are equal in a file."""
    return {
        copy: original
        for copy, original in pairs.items()
        if np.array_equal(tensors.get(copy), tensors.get(original))
    }


def count_layers(state: Iterable[str], start: str) -> int:
    """Returns the number of layers with weights in a state, `START` and a number; at least 1."""
    matches = (re.match(rf"{re.escape(start)}(\d+)\D", name) for name in state)
    return max(1, len({int(match[1]) for match in matches if match}))


def half_sinusoids(length: int, d_model: int, intervals: int, first: int = 0) -> Array:
    """Returns a table of positions (length, D): all sines, then all cosines.

    Args:
        length, d_model: int.
        intervals: int, from the frequency 1 to 1 / 10000: D / 2 in Marian, D / 2 - 1 in fairseq.
        first: int, the first position. Defaults to 0.
    """
    frequencies = 10000.0 ** (-np.arange(d_model // 2) / intervals)  # (D / 2,)
    angles = np.arange(first, first + length)[:, None] * frequencies  # (length, D / 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


@dataclass(frozen=True)
class Origin:
    """A family of weights in folders: the readers of its files, and its table.

    Attributes:
        name: str, the name of the importer; in Hugging Face's layout the "model_type".
        read_files: function from the folder to its checked configuration and a dict of all tensors.
        table: function from the configuration, the tensors and the user's options to the `Table`.
            It removes the options that are not arguments of the model. `unknown` in the
            configuration is the attribute of the `Vocabulary`.
        vocabulary: function from the folder and the configuration to a `Vocabulary`. `options` in
            the configuration are the user's. It removes those of the tokenizers.
        file: pattern of a file that every folder of the origin holds.
    """

    name: str
    read_files: Callable[[pathlib.Path], tuple[dict[str, Any], Arrays]]
    table: Callable[[dict[str, Any], Arrays, dict[str, Any]], Table]
    vocabulary: Callable[[pathlib.Path, dict[str, Any]], Vocabulary]
    file: str = "config.json"

    def __post_init__(self) -> None:
        checkpoint.FILES[self.name] = self.file

    def load_model(self, folder: StrPath, **options: Any) -> Any:
        """Loads a model of this origin. Its ids are in our order; see `row_orders`.

        Args:
            folder: str or path-like, the published files. `config.json` and `model.safetensors` (or
                `pytorch_model.bin`), unless the description of the origin names others.
            **options: arguments of the model that do not change weights, such as `dropout`, `dtype`
                or `name`, and the options of the origin.

        Returns:
            `Transformer`, or the model in the description of the origin.

        Raises:
            OSError: a file is missing.
            ValueError: a folder of another origin, or an architecture that our model does not
                support; a tensor that is missing, left over or misshapen; a truncated file, or a
                pickle with code.

        Example:

        >>> model = marian.load_model("opus-mt-en-de", dropout=0.0)  # doctest: +SKIP
        """
        table, tensors, _ = self.read(folder, options, tokenizers=False)
        return table.build(tensors, options)

    def load(self, folder: StrPath, **options: Any) -> tuple[Any, Any]:
        """Loads the model of `load_model`, and the tokenizers of the folder with our ids.

        Args:
            folder: str or path-like, also with the files of the tokenizers.
            **options: as in `load_model`.

        Returns:
            `(model, tokenizer)`, or `(model, (source, target))` if the two tokenizers differ.

        Raises:
            OSError, ValueError: as `load_model`; a file is not a tokenizer of this model.

        Example:

        >>> model, tokenizer = gpt2.load("gpt2")  # doctest: +SKIP
        """
        table, tensors, vocabulary = self.read(folder, options)
        model = table.build(tensors, {**vocabulary.options, **options})
        return with_tokenizers(model, vocabulary.make(table.orders))

    def row_orders(self, folder: StrPath) -> list[Ids]:
        """Returns the origin's id of each of our rows, (V,) integers; -1 for a row it lacks.

        Args:
            folder: as in `load_model`.

        Returns:
            A list of one array, or of two if the target has a separate vocabulary.
        """
        return self.read(folder, {}, tokenizers=False)[0].orders

    def read(
        self, folder: StrPath, options: dict[str, Any], tokenizers: bool = True
    ) -> tuple[Table, Arrays, Vocabulary]:
        """Returns the table of a folder, its tensors, and its vocabulary if `tokenizers` are read.

        Options that are not arguments of the model are removed from `options`.
        """
        folder = pathlib.Path(folder)
        config, tensors = self.read_files(folder)
        config["options"] = options
        vocabulary = self.vocabulary(folder, config) if tokenizers else Vocabulary()
        config["unknown"] = vocabulary.unknown
        return self.table(config, tensors, options), tensors, vocabulary
