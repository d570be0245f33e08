"""Artefacts that are damaged, foreign, incomplete or mixed up raise an error that says so."""

import copy as copies
import json
import os
import random
import re
import shutil

import numpy as np
import onnxruntime
import pytest
from helpers import array_search, artefacts, head_artefacts

from keras_transformer.export.artefact import reader, signature
from keras_transformer.export.artefact.manifest import checksum, digest, unseal
from keras_transformer.export.runtime import (
    ArtefactError,
    ProviderError,
    Translator,
    open_runner,
    session,
)
from keras_transformer.export.runtime.__main__ import main
from keras_transformer.export.runtime.check import made_up_inputs

TRIES = 100
MODEL, TOKENIZER, MANIFEST = NAMES = (
    signature.MODEL_FILE,
    signature.TOKENIZER_FILE,
    signature.MANIFEST_FILE,
)
OTHERS = {signature.WEIGHTS_FILE: bytes(range(256)), signature.TEXT_MODEL_FILE: b"text" * 97}


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """Writes an artefact with a file of every kind."""
    return artefacts.write(tmp_path_factory.mktemp("artefact"), tokenizer, files=OTHERS.items())


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def manifest_of(folder):
    return unseal((folder / MANIFEST).read_bytes())


def forge(folder, manifest, sealed=True):
    """Writes a manifest that no exporter writes, with a valid checksum unless `sealed` is false."""
    if sealed:
        manifest = {**manifest, "checksum": checksum(manifest)}
    text = json.dumps(manifest, indent=2, ensure_ascii=True) + "\n"
    (folder / MANIFEST).write_text(text)


# Damage


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_every_random_damage_is_found(copy, damage, tokenizer):
    """Cuts off files at a random place, or flips single bits: 100 tries each."""
    draw, tried = random.Random(f"20170612 {damage}"), set()
    names = sorted(path.name for path in copy.iterdir())
    for _ in range(TRIES):
        tried.add(name := draw.choice(names))
        data = (copy / name).read_bytes()
        place, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
        flipped = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
        (copy / name).write_bytes(data[:place] if damage == "cut" else flipped)
        with pytest.raises(ArtefactError, match=name.replace(".", r"\.")):
            Translator(copy)
        (copy / name).write_bytes(data)
    assert tried == set(names) == {*NAMES, *OTHERS}
    (result,) = Translator(copy, threads=1).n_best(["two dogs"])  # nothing is damaged any more
    assert result[:2] == artefacts.expected_hypotheses(tokenizer, "two dogs")


def test_changes_of_the_manifest_layout_are_found(copy):
    """Tests damage that JSON allows: a lost last newline, an `e` turned into an `E`."""
    path = copy / MANIFEST
    data = path.read_bytes()
    for place in [*range(0, len(data), 11), len(data) - 1]:
        for middle in (bytes([data[place] ^ 0x20]), b""):
            path.write_bytes(data[:place] + middle + data[place + 1 :])
            with pytest.raises(ArtefactError):
                reader.read_task(copy)
    path.write_text(json.dumps(json.loads(data)))
    with pytest.raises(ArtefactError, match="was cut off or edited"):
        reader.read_task(copy)


def holds(data):
    return lambda path, before: path.write_bytes(data)


def never_ends(path, before):
    path.write_bytes(before)
    os.truncate(path, 2**40)


# Names of a file; what is done with its path and its former content, after it was removed; error.
INSTEAD = {
    "nothing": ((*NAMES, *OTHERS), lambda path, before: None, "cannot be read"),
    "folder": ((*NAMES, *OTHERS), lambda path, before: path.mkdir(), "cannot be read"),
    "large": (NAMES, never_ends, f"has {2**40} bytes"),
    "fifo": (NAMES, lambda path, before: os.mkfifo(path), "cannot be read .*no regular file"),
    "device": (
        NAMES,
        lambda path, before: path.symlink_to("/dev/zero"),
        "cannot be read .*no regular file",
    ),
    "kernel": ([MANIFEST], lambda path, before: path.symlink_to("/proc/kmsg"), "has 0 bytes"),
    "of another artefact": (
        (MODEL, TOKENIZER),
        lambda path, before: path.write_bytes(before[::-1]),  # the same size
        "was changed after the export",
    ),
    "empty": ([MANIFEST], holds(b""), "has 0 bytes, or changed .* A manifest has from 1"),
    "not text": ([MANIFEST], holds(b"\xff\xfe"), "is not JSON"),
    "deep": ([MANIFEST], holds(b"[" * 100_000), ".*recursion"),
    "list": ([MANIFEST], holds(b"[]"), "is not an artefact of"),
    "no fields": ([MANIFEST], holds(b"{}"), "is not an artefact of"),
    "another format": ([MANIFEST], holds(b'{"format": "another"}'), "is not an artefact of"),
}


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="special files of Linux")
@pytest.mark.parametrize(
    ("instead", "name"), [(key, name) for key, (names, *_) in INSTEAD.items() for name in names]
)
def test_another_file_is_named(copy, instead, name):
    _, make, message = INSTEAD[instead]
    before = (copy / name).read_bytes()
    (copy / name).unlink()
    make(copy / name, before)
    with pytest.raises(ArtefactError, match=f"{name}:? .*{message}"):
        Translator(copy)


# Changes while it is opened


@pytest.fixture
def before_opening(monkeypatch):
    """Returns a function that lets an action run when ONNX Runtime opens a model."""
    opens = onnxruntime.InferenceSession

    def patch(action):
        def opening(*arguments, **options):
            action()
            return opens(*arguments, **options)

        monkeypatch.setattr(onnxruntime, "InferenceSession", opening)

    return patch


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_changes_while_it_is_opened_is_noticed(copy, moved, before_opening):
    """A model of the same size is written or moved there after the checksum was compared."""
    before = (copy / MODEL).read_bytes()
    other = before.replace(np.float32(-0.001).tobytes(), np.float32(-0.002).tobytes())
    assert len(other) == len(before) and other != before

    def rewrite():
        path = copy / ("new" if moved else MODEL)
        path.write_bytes(other)
        path.replace(copy / MODEL)

    before_opening(rewrite)
    with pytest.raises(ArtefactError, match="model.onnx was (written or|changed)"):
        Translator(copy)


@pytest.mark.parametrize("by", ["link", "names"])
def test_a_folder_switched_back_and_forth_opens_no_other_model(
    tmp_path, tokenizer, monkeypatch, before_opening, by
):
    one = artefacts.write(tmp_path / "one", tokenizer)
    model = artefacts.model(tokenizer.vocab_size, score=[-5.0, -7.0])
    two = artefacts.write(tmp_path / "two", tokenizer, model)
    link, options = tmp_path / "link", session.session_options
    link.symlink_to("one")
    wanted = Translator(one, threads=1).n_best(["two dogs"])

    def switch(target):
        if by == "link":
            (tmp_path / "new").symlink_to(target)
            os.replace(tmp_path / "new", link)
        else:
            for path, name in ((one, "aside"), (two, "one"), (tmp_path / "aside", "two")):
                os.rename(path, tmp_path / name)

    def there(*arguments):
        switch("two")
        return options(*arguments)

    monkeypatch.setattr(session, "session_options", there)
    before_opening(lambda: switch("one"))
    if by == "link":
        assert Translator(link, threads=1).n_best(["two dogs"]) == wanted
    else:
        with pytest.raises(ArtefactError, match="model.onnx was written or replaced"):
            Translator(one, threads=1)


def test_a_new_mode_or_hard_link_during_opening_is_accepted(copy, before_opening):
    def change():
        (copy / TOKENIZER).chmod(0o640)
        os.link(copy / TOKENIZER, copy / "backup")

    before_opening(change)
    assert Translator(copy, threads=1).translate(["two dogs"]) != [""]


def test_a_file_removed_during_opening_is_named(copy, monkeypatch):
    load = reader.load_tokenizer

    def removing(path):
        path.unlink()
        return load(path)

    monkeypatch.setattr(reader, "load_tokenizer", removing)
    with pytest.raises(ArtefactError, match="tokenizer.model cannot be read"):
        Translator(copy)


# Folders that are no artefact


def test_paths_that_are_no_artefact_are_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("{}")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    (tmp_path / "empty").rmdir()
    for path in (tmp_path / "missing", tmp_path / "file", tmp_path, "onnx", "out\0/onnx"):
        for call in (Translator, open_runner):
            with pytest.raises(ArtefactError, match="is not an artefact.*Pass the folder that"):
                call(path)


def test_values_of_a_manifest_are_shortened_in_errors(tmp_path, tokenizer):
    long = "7" * 10_007
    unfit = artefacts.write(tmp_path / "a", tokenizer, b"\x08\x08", versions={"onnxruntime": long})
    newer = artefacts.write(tmp_path / "b", tokenizer)
    forge(newer, {**manifest_of(newer), "format_version": long})
    for folder, message in ((unfit, "cannot run"), (newer, "has format_version '777")):
        with pytest.raises(ArtefactError, match=message) as caught:
            Translator(folder)
        assert len(str(caught.value)) < 1_009


# Parts that do not fit


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"files": {TOKENIZER: None}.items()}, "holds no tokenizer.model"),
        (
            {"files": {TOKENIZER: b"not a model"}.items()},
            "tokenizer.model: .* not a SentencePiece model",
        ),
        (
            {"model_bytes": b"not a model", "versions": {"onnxruntime": "9.8.7"}},
            "cannot run .*model.onnx.*9.8.7",
        ),
        (
            {"model_bytes": artefacts.model(400).replace(b"source_ids", b"source_idx")},
            r"has the inputs \['source_idx'\].*\['source_ids'\]",
        ),
        (
            {"vocab_size": {"source": 9, "target": 9}},
            r"/tokenizer.model: the tokenizer has \d+ ids and the model knows 9",
        ),
        (
            {
                "files": {signature.TARGET_TOKENIZER_FILE: artefacts.tokenizer().model},
                "vocab_size": {"source": 400, "target": 8},
            },
            r"target_tokenizer.model: the tokenizer has \d+ ids and the model knows 8",
        ),
    ],
)
def test_parts_that_do_not_fit_are_named(tmp_path, tokenizer, fields, message):
    folder = artefacts.write(tmp_path, tokenizer, **fields)
    with pytest.raises(ArtefactError, match=message):
        Translator(folder)


# Manifests with one wrong value and a valid checksum: refused, or harmless

ODD = (None, True, -1, 1.5, 10**30, "x", "\ud800", [], [1], {}, {"a": 1})
ITEMS = {"translate": "two dogs", "classify": "two dogs", "answer": "who ?\ttwo dogs"}
ITEMS |= {"series": "[[1, 2]]", "mixed": '{"source_ids": "a man", "numbers": [1, 2]}'}
ITEMS |= {"transcribe": "[5]"}


def write(folder, name, tokenizer):
    """Writes the artefact of a name in `ITEMS`."""
    if name == "translate":
        text = {"inputs": [artefacts.described("text", "string")]}
        text["outputs"] = [artefacts.described("texts", "string")]
        return artefacts.write(folder, tokenizer, text=text, layout="loop")
    if name == "transcribe":
        return array_search.write(folder, tokenizer)
    return head_artefacts.write(folder, None if name == "series" else tokenizer, name)


def places(value, place=()):
    """Yields the path to every value inside `value`."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*place, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*place, key))


def replaced(manifest, place, value):
    """Returns a copy with another value at a place."""
    changed = inner = copies.deepcopy(manifest)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


@pytest.mark.quick("series")
@pytest.mark.parametrize("name", ITEMS)
def test_a_field_of_a_wrong_type_is_refused_or_changes_nothing(name, tokenizer, tmp_path):
    folder = write(tmp_path, name, tokenizer)
    manifest = manifest_of(folder)
    (good,) = open_runner(folder, threads=1).results([ITEMS[name]])
    assert good.error is None
    cases = [(place, value) for place in places(manifest) for value in ODD]
    refused = 0
    for place, value in cases:
        forge(folder, replaced(manifest, place, value))
        try:
            runner = open_runner(folder, threads=1)
            made_up_inputs(runner.manifest)
            (found,) = runner.results([ITEMS[name]])
        except (ArtefactError, ProviderError):
            refused += 1
        except Exception as error:
            pytest.fail(f"{place} = {value!r}: {error!r}")
        else:
            assert type(found) is type(good), (place, value)
    assert len(cases) > 400 and refused > len(cases) // 2


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("translate", ("format_version",), True, "format_version True"),
        (
            "translate",
            ("format_version",),
            signature.FORMAT_VERSION + 1,
            f"format_version {signature.FORMAT_VERSION + 1}.*reads",
        ),
        ("translate", ("ir_version",), True, "ir_version is True"),
        ("classify", ("head", "class_name"), [], "damaged or was edited.*head is"),
        ("classify", ("head", "class_name"), {}, "damaged or was edited.*head is"),
        ("classify", ("inputs", 0, "dtype"), "int64", r"'source_ids' \('int32', .*\('int64'"),
        ("classify", ("inputs", 0, "dtype"), "string", r"says \('string'"),
        ("classify", ("inputs", 0, "axes"), ["batch"], "input 'source_ids'"),
        ("classify", ("inputs", 0, "axes"), ["batch", 10**13], "input 'source_ids'"),
    ],
)
def test_a_wrong_value_is_named(name, place, value, message, tokenizer, tmp_path, capsys):
    folder = write(tmp_path, name, tokenizer)
    forge(folder, replaced(manifest_of(folder), place, value))
    with pytest.raises(ArtefactError, match=message):
        open_runner(folder)
    assert main([str(folder), "--check"]) == 2
    output, errors = capsys.readouterr()
    assert re.search(message, " ".join((output + errors).split()))


@pytest.mark.parametrize("name", ["../a.bin", "./../a.bin", "{folder}/../a.bin", "b.bin", "", "."])
def test_a_sealed_manifest_names_no_file_outside_its_folder(copy, name):
    """Such a file is neither opened nor compared, whatever it holds."""
    name = name.format(folder=copy)
    for path in (copy.parent / "a.bin", copy / "b.bin"):
        path.write_bytes(b"secret")
    manifest = manifest_of(copy)
    forge(copy, {**manifest, "files": {**manifest["files"], name: digest(path)}})
    with pytest.raises(ArtefactError, match=re.escape(f"files name {name!r}")):
        Translator(copy)


def changes(**fields):
    """Returns a case: how a manifest changes."""
    return lambda manifest: {**manifest, **fields}


def at(place, value):
    return lambda manifest: replaced(manifest, place, value)


SEVEN = {"class_name": "Classification", "config": {"labels": list("abcdefg")}}
TAGS = {"class_name": "TokenClassification", "config": {"labels": ["a", "b"]}}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("translate", changes(color="red"), "unknown field 'color'"),
        ("translate", changes(files={}), "files do not name model.onnx"),
        (
            "translate",
            at(("files", MODEL), {"sha256": "a", "bytes": 1}),
            "the entry of model.onnx is",
        ),
        ("translate", at(("limits", "depth"), 1), "limits is"),
        ("translate", at(("limits", "source_length"), True), "limits"),
        ("translate", changes(search=None), "a search without its configuration"),
        ("translate", lambda m: {**m, "outputs": m["outputs"][::-1]}, "a search has outputs"),
        ("translate", changes(outputs=[]), "no inputs or no outputs"),
        ("translate", changes(ignores_padding=True), "task 'translate' with the fields"),
        ("classify", lambda m: {k: v for k, v in m.items() if k != "head"}, "with the fields"),
        ("classify", changes(task="embed"), "head is"),
        ("classify", changes(head=SEVEN), "7 labels and an output of"),
        ("answer", changes(task="tag", head=TAGS), "'tag'.*reads words"),
    ],
)
def test_a_sealed_manifest_that_no_exporter_writes_is_refused(
    name, change, message, tokenizer, tmp_path
):
    folder = write(tmp_path, name, tokenizer)
    forge(folder, change(manifest_of(folder)))
    with pytest.raises(ArtefactError, match=message):
        open_runner(folder)


def test_a_sealed_manifest_with_another_checksum_is_refused(copy):
    forge(copy, manifest_of(copy) | {"checksum": "0" * 64}, sealed=False)
    with pytest.raises(ArtefactError, match="its checksum should be"):
        Translator(copy)
