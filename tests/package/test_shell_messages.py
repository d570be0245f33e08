"""Errors at a command's door name the command's options instead of Python's arguments."""

import ast
import inspect
import re
import warnings

import pytest
from helpers.imports import MODULES

from keras_transformer import export
from keras_transformer.export import __main__ as exporters
from keras_transformer.export.archive.__main__ import main as archive
from keras_transformer.export.artefact.messages import in_shell
from keras_transformer.export.command import flags, warnings_in_shell
from keras_transformer.export.serving.__main__ import main as serving
from keras_transformer.importers import __main__ as importers

DOORS = {"export": flags(exporters.parser()), "importers": flags(importers.parser())}
# Arguments of the functions behind these commands.
ARGUMENTS = {
    name
    for writer in ("onnx", "saved_model", "ctranslate2", "marian", "triton")
    for name in inspect.signature(getattr(export, f"export_{writer}")).parameters
} - {"model", "path", "name"}
BEHIND = re.compile(
    r"export\.(?!runtime|serving|documents|archive|ray|hub|verify)\w+|importers|search|models"
)
OTHER_FORMATS = re.compile(r"export\.(triton|marian_folder|ctranslate2_model|encoder_decoder)")


def text_of(node):
    """Returns the text of a string expression, with a word for each value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "value" if isinstance(node, ast.FormattedValue) else ""


def messages(door):
    """Returns all texts of the modules behind a command that may be part of a message."""
    found = set()
    for name, module in MODULES.items():
        elsewhere = door == "importers" and OTHER_FORMATS.match(name)
        if not BEHIND.match(name) or name.endswith("__main__") or elsewhere:
            continue
        nodes = list(ast.walk(module.tree))
        documentation = {
            id(node.value)
            for node in nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        found |= {
            text_of(node)
            for node in nodes
            if isinstance(node, ast.expr) and id(node) not in documentation
        }
    return sorted(text for text in found if " " in text)


MESSAGES = {door: messages(door) for door in DOORS}


def advised(text):
    """Returns the arguments that a message names: `name`, name=value, or several words."""
    named = re.findall(
        r"`(\w+)`|(?<![\w.`-])(\w+)=[^=\s]|(?<![\w.`/-])([a-z]+(?:_[a-z]+)+)\b", text
    )
    return {name for names in named for name in names if name} & ARGUMENTS


def test_many_messages_name_arguments():
    assert len({name for text in MESSAGES["export"] for name in advised(text)}) >= 10


@pytest.mark.parametrize("door", DOORS)
def test_no_message_names_an_option_that_its_command_lacks(door):
    known, problems = DOORS[door], []
    for text in MESSAGES[door]:
        changed, _, lacking = in_shell(text, known).partition(" In Python only: ")
        unexplained = advised(changed) - {*lacking.rstrip(".").split(", ")}
        problems += [f"{name}: {changed}" for name in unexplained]
        unknown = {*re.findall(r"(?<!\S)(--[a-z-]+)", changed)} - {*known.values(), "--no"}
        if not re.search("python -m|pip install|marian-conv", changed):  # other commands
            problems += [f"{name}: {changed}" for name in unknown]
    assert not problems


@pytest.mark.parametrize(
    "message, expected",
    [
        ("a larger `tolerance`, or (`keep_float`).", "a larger --tolerance, or (--keep-float)."),
        ("try fuse=False or precision='float32';", "try --no-fuse or --precision float32;"),
        ("text=True needs it, text=False not.", "--text needs it, no --text not."),
        ("the default (max_length).", "the default (--max-length)."),
        ("Export with options=['top_k', 'top_p'].", "Export with --options top_k top_p."),
        (
            "Pass samples=[...] or `samples`.",
            "Pass samples=[...] or `samples`. In Python only: samples.",
        ),
        ("head=Classification(labels).", "head=Classification(labels). In Python only: head."),
        ("config.json says vocab_size=5 in `fit`.", "config.json says vocab_size=5 in `fit`."),
        ("model.max_length and x.text=3 stay.", "model.max_length and x.text=3 stay."),
    ],
)
def test_arguments_become_options(message, expected):
    assert in_shell(message, DOORS["importers"]) == expected


@pytest.mark.parametrize(
    "main, command, told",
    [
        (archive, "nowhere in.txt out --part-lines 0", "--part-lines must be at least 1, got 0"),
        (serving, "a=nowhere --drain -1", "--drain must be 0 or more, got -1"),
        (serving, "a=nowhere --queue 0", "--queue must be above 0"),
        (serving, "a=nowhere --allow-host http://x", "--allow-host has "),
    ],
)
def test_the_other_commands_name_their_options(main, command, told, capsys):
    assert main(command.split()) != 0
    error = capsys.readouterr().err
    assert f"error: {told}" in error and "`" not in error


def test_warnings_are_printed_like_errors(recwarn):
    with warnings_in_shell(importers.parser()):
        shown = warnings.formatwarning(
            UserWarning("or `keep_float` keeps them"), UserWarning, "", 1
        )
        other = warnings.formatwarning(DeprecationWarning("old"), DeprecationWarning, "a.py", 7)
    start = "python -m keras_transformer.importers: warning: "
    assert shown == f"{start}or --keep-float keeps them\n"
    assert "a.py:7" in other
