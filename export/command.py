"""Options that the commands of the exporters and of the importers share, and their messages.

The table of an option gives the formats that have it, its help and its argparse settings. A command
adds the options that it needs with `add_options`. Errors of Python functions name arguments;
`in_shell` and `warnings_in_shell` turn them into the options of a command.
"""

import argparse
import contextlib
import json
import pathlib
import warnings
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.messages import in_shell
from keras_transformer.export.artefact.task_heads import Head, describe_head, head_of
from keras_transformer.types import StrPath

FORMATS = ("onnx", "litert", "saved_model", "ctranslate2", "marian", "triton")
ONNX, LITERT, SAVED_MODEL, CTRANSLATE2, MARIAN, TRITON = FORMATS
WITH_SEARCH = (ONNX, LITERT, SAVED_MODEL)
OF_MODELS = FORMATS[:-1]  # triton takes an artefact
# Each option: its formats, its help and its argparse settings. Options without effect are errors:
# a user who passes --length-penalty with --greedy expects an effect.
Settings: TypeAlias = dict[str, Any]
Options: TypeAlias = dict[str, tuple[tuple[str, ...], str, Settings]]


def layers_and_heads(text: str) -> list[tuple[int, int]]:
    """Parses the pairs of `LAYER:HEAD,LAYER:HEAD`."""
    pairs = (pair.split(":") for pair in text.split(","))
    return [(int(layer), int(head)) for layer, head in pairs]


SWITCH: Settings = {"action": "store_true"}
NUMBER: Settings = {"type": int, "metavar": "N"}
REAL: Settings = {"type": float, "metavar": "X"}
SEARCHES: Options = {
    "beam_width": (WITH_SEARCH, "beam search of this width (4)", NUMBER),
    "greedy": (WITH_SEARCH, "greedy search", SWITCH),
    "sampling": (WITH_SEARCH, "random sampling", SWITCH),
    "forward": (WITH_SEARCH, "no search: the forward pass", SWITCH),
}
SEARCH_OPTIONS: Options = {
    "length_penalty": (WITH_SEARCH, "length penalty of beam search (0.6)", REAL),
    "temperature": (WITH_SEARCH, "sampling temperature (1.0)", REAL),
    "top_k": (WITH_SEARCH, "sample from the N likeliest tokens (0: all)", NUMBER),
    "top_p": (WITH_SEARCH, "sample from the tokens of this total probability (1.0: all)", REAL),
    "num_samples": (WITH_SEARCH, "samples per source (1)", NUMBER),
    "token_scores": (WITH_SEARCH, "also write the log-probability of each token", SWITCH),
    "alignments": (
        WITH_SEARCH,
        "also write the attention to the source: the mean of all heads of the last layer, or of "
        "some, as in --alignments=-1:0,-1:3",
        {"nargs": "?", "const": True, "type": layers_and_heads, "metavar": "LAYER:HEAD,..."},
    ),
}
OPTIONS: Options = {
    "tokenizer": (OF_MODELS, "tokenizer to include, NAME.model", {}),
    "target_tokenizer": (OF_MODELS, "tokenizer of the target, if different", {}),
    "max_length": (
        OF_MODELS,
        "maximum number of generated tokens (source + 50); for other engines, of a text's tokens",
        NUMBER,
    ),
    "tolerance": (
        (ONNX, LITERT, SAVED_MODEL, CTRANSLATE2),
        "largest relative difference from Keras",
        REAL,
    ),
    "precision": (
        (ONNX, LITERT, CTRANSLATE2),
        f"one of {', '.join(signature.PRECISIONS)} (float32); litert and ctranslate2 have others",
        {},
    ),
    "text": (
        (ONNX, TRITON),
        "onnx: also write a file from text to text; triton: serve that file",
        SWITCH,
    ),
    "max_source_length": ((ONNX, LITERT), "longest source in tokens (512)", NUMBER),
    "fuse": (
        (ONNX,),
        "standard ONNX operators only, if the weights stay float",
        {"action": "store_false"},
    ),
    "keep_float": (
        (ONNX,),
        "prefix of paths of weights that stay float32; can be repeated",
        {"action": "append", "metavar": "PATH"},
    ),
    "layout": (
        (ONNX,),
        "one file, or two with the loop outside (loop)",
        {"choices": signature.LAYOUTS},
    ),
    "head": (
        (ONNX, LITERT),
        "head of the outputs: head.json, which an import of BERT writes",
        {"metavar": "FILE"},
    ),
    "options": (
        WITH_SEARCH,
        "options of a search call that become model inputs, such as beam_width",
        {"nargs": "+", "metavar": "NAME"},
    ),
    "name": ((TRITON,), "name of the model (the folder's)", {}),
    "op_library": (
        (TRITON,),
        "path of onnxruntime-extensions on the server; with --text",
        {"metavar": "PATH"},
    ),
    "device": ((TRITON,), "where the model runs (cpu)", {"choices": ("cpu", "gpu")}),
    "instances": ((TRITON,), "copies of the model (1)", NUMBER),
    "threads": ((TRITON,), "threads per batch (all cores)", NUMBER),
    "max_batch_size": ((TRITON,), "maximum rows of a batch (64); 0 disables batching", NUMBER),
    "queue_delay": ((TRITON,), "microseconds that a request may wait (2000)", NUMBER),
}
BEAM = ("beam_width", "length_penalty")
SAMPLING = ("temperature", "top_k", "top_p", "num_samples")
RECORDS = ("token_scores", "alignments")


def flag(name: str) -> str:
    """Returns the flag of an option."""
    return "--no-fuse" if name == "fuse" else f"--{name}".replace("_", "-")


def add_options(group: Any, options: Options) -> None:
    """Adds options to a parser or to a group of its arguments."""
    for name, (formats, text, settings) in options.items():
        which = "" if formats == OF_MODELS else f"{', '.join(formats)}: "
        group.add_argument(flag(name), dest=name, help=which + text, **settings)


def chosen(arguments: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """Returns the given options among `names`, with their values."""
    return {name: value for name, value in vars(arguments).items() if name in names}


def flags(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Returns the flags of a parser by the names of their values, for `in_shell`."""
    found = {action.dest: name for name, action in parser._option_string_actions.items()}
    found.pop("name", None)  # an argument of many functions
    return found


@contextlib.contextmanager
def warnings_in_shell(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Prints warnings like errors: without the line of the code, and with a command's options."""
    usual, known = warnings.formatwarning, flags(parser)

    def formatted(message: Warning | str, category: type[Warning], *place: Any) -> str:
        if not issubclass(category, UserWarning):
            return usual(message, category, *place)
        return f"{parser.prog}: warning: {in_shell(str(message), known)}\n"

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = usual


def save_head(head: Head, path: StrPath) -> None:
    """Writes a head as JSON."""
    text = json.dumps(describe_head(head), ensure_ascii=False, indent=2)
    pathlib.Path(path).write_text(f"{text}\n", "utf-8")


def load_head(path: StrPath) -> Any:
    """Reads the head that `save_head` wrote. Raises `ValueError` for another content."""
    try:
        return head_of(json.loads(pathlib.Path(path).read_text("utf-8")))
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} describes no head: {error}. Pass a head.json that an import wrote."
        ) from error
