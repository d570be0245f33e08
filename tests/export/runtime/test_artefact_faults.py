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

TRIES = 200
NAMES = [signature.MODEL_FILE, signature.TOKENIZER_FILE, signature.MANIFEST_FILE]


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """Writes an artefact with a file of every kind."""
    others = {signature.WEIGHTS_FILE: bytes(range(256)), signature.TEXT_MODEL_FILE: b"text" * 97}
    return artefacts.write(tmp_path_factory.mktemp("artefact"), tokenizer, files=others.items())


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def manifest_of(folder):
    return unseal((folder / signature.MANIFEST_FILE).read_bytes())


def forge(folder, manifest):
    """Writes a manifest that no exporter writes, with a valid checksum."""
    manifest = {**manifest, "checksum": checksum(manifest)}
    text = json.dumps(manifest, indent=2, ensure_ascii=True) + "\n"
    (folder / signature.MANIFEST_FILE).write_text(text)


# Damage


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_every_random_damage_is_found(copy, damage, tokenizer):
    """Cuts off files at a random place, or flips single bits: 100 tries each."""
    draw = random.Random(f"20170612 {damage}")
    names = sorted(path.name for path in copy.iterdir())
    tried = set()
    for _ in range(TRIES // 2):
        name = draw.choice(names)
        data = (copy / name).read_bytes()
        place, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
        flipped = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
        (copy / name).write_bytes(data[:place] if damage == "cut" else flipped)
        with pytest.raises(ArtefactError, match=name.replace(".", r"\.")):
            Translator(copy)
        (copy / name).write_bytes(data)
        tried.add(name)
    assert tried == set(names) and len(names) == 5
    (result,) = Translator(copy, threads=1).n_best(["two dogs"])  # nothing is damaged any more
    assert result[:2] == artefacts.expected_hypotheses(tokenizer, "two dogs")


def test_changes_of_the_manifest_layout_are_found(copy):
    """Tests damage that JSON allows: a lost last newline, an `e` turned into an `E`."""
    path = copy / signature.MANIFEST_FILE
    data = path.read_bytes()
    for place in [*range(0, len(data), 11), len(data) - 1]:
        changed = bytes([data[place] ^ 0x20])
        for middle in (changed, b""):
            path.write_bytes(data[:place] + middle + data[place + 1 :])
            with pytest.raises(ArtefactError):
                reader.read_task(copy)
    path.write_text(json.dumps(json.loads(data)))
    with pytest.raises(ArtefactError, match="was cut off or edited"):
        reader.read_task(copy)


@pytest.mark.parametrize("name", [*NAMES, signature.WEIGHTS_FILE, signature.TEXT_MODEL_FILE])
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(ArtefactError, match=f"{name} cannot be read"):
        Translator(copy)
    (copy / name).mkdir()
    with pytest.raises(ArtefactError, match=f"{name} cannot be read"):
        Translator(copy)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without FIFOs")
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_never_ends_is_refused(copy, name):
    os.truncate(copy / name, 2**40)
    with pytest.raises(ArtefactError, match=f"{name} has {2**40} bytes"):
        Translator(copy)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (copy / name).unlink()
        make(copy / name)
        with pytest.raises(ArtefactError, match=f"{name} cannot be read .*no regular file"):
            Translator(copy)


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="a file of Linux that never ends")
def test_a_manifest_linked_to_a_kernel_file_is_not_read(copy):
    manifest = copy / signature.MANIFEST_FILE
    manifest.unlink()
    manifest.symlink_to("/proc/kmsg")
    with pytest.raises(ArtefactError, match="artefact.json has 0 bytes"):
        Translator(copy)


# Changes while it is opened


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_changes_while_it_is_opened_is_noticed(copy, moved, monkeypatch):
    """A model of the same size is written or moved there after the checksum was compared."""
    path, opens = copy / signature.MODEL_FILE, onnxruntime.InferenceSession
    before = path.read_bytes()
    other = before.replace(np.float32(-0.001).tobytes(), np.float32(-0.002).tobytes())
    assert len(other) == len(before) and other != before

    def rewriting(*arguments, **options):
        (copy / "new").write_bytes(other)
        if moved:
            os.replace(copy / "new", path)
        else:
            path.write_bytes(other)
        return opens(*arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", rewriting)
    with pytest.raises(ArtefactError, match="model.onnx was (written or|changed)"):
        Translator(copy)
    monkeypatch.undo()
    path.write_bytes(before)
    assert Translator(copy, threads=1).translate(["two dogs"]) != [""]


@pytest.mark.parametrize("by", ["link", "names"])
def test_a_folder_switched_back_and_forth_opens_no_other_model(
    tmp_path, tokenizer, monkeypatch, by
):
    one = artefacts.write(tmp_path / "one", tokenizer)
    model = artefacts.model(tokenizer.vocab_size, score=[-5.0, -7.0])
    two = artefacts.write(tmp_path / "two", tokenizer, model)
    link, opens, options = tmp_path / "link", onnxruntime.InferenceSession, session.session_options
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

    def back(*arguments, **named):
        switch("one")
        return opens(*arguments, **named)

    monkeypatch.setattr(session, "session_options", there)
    monkeypatch.setattr(onnxruntime, "InferenceSession", back)
    if by == "link":
        assert Translator(link, threads=1).n_best(["two dogs"]) == wanted
    else:
        with pytest.raises(ArtefactError, match="model.onnx was written or replaced"):
            Translator(one, threads=1)


def test_a_new_mode_or_hard_link_during_opening_is_accepted(copy, monkeypatch):
    opens, path = onnxruntime.InferenceSession, copy / signature.TOKENIZER_FILE

    def changing(*arguments, **named):
        path.chmod(0o640)
        os.link(path, copy / "backup")
        return opens(*arguments, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", changing)
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
    for name in ("missing", "file", "empty"):
        with pytest.raises(ArtefactError, match="is not an artefact.*Pass the folder that"):
            Translator(tmp_path / name)
    for call in (Translator, open_runner):
        with pytest.raises(ArtefactError, match="is not an artefact: .*null"):
            call("out\0/onnx")
    monkeypatch.chdir(tmp_path / "empty")
    (tmp_path / "empty").rmdir()
    with pytest.raises(ArtefactError, match="onnx is not an artefact"):
        Translator("onnx")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes, or changed while it was read. A manifest has from 1"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "artefact.json: .*recursion"),  # deeper than the parser allows
        (b"[]", "is not an artefact of"),
        (b"{}", "is not an artefact of"),
        (b'{"format": "another"}', "is not an artefact of"),
    ],
)
def test_a_foreign_manifest_is_refused(copy, content, message):
    (copy / signature.MANIFEST_FILE).write_bytes(content)
    with pytest.raises(ArtefactError, match=message):
        Translator(copy)


def test_a_newer_format_asks_for_a_newer_release(copy):
    newer = signature.FORMAT_VERSION + 1
    forge(copy, {**manifest_of(copy), "format_version": newer})
    with pytest.raises(ArtefactError, match=f"format_version {newer}.*reads"):
        Translator(copy)


def test_a_file_of_another_artefact_is_found(copy):
    for name in (signature.TOKENIZER_FILE, signature.MODEL_FILE):
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[::-1])  # the same size
        with pytest.raises(ArtefactError, match=f"{name} was changed after the export"):
            Translator(copy)
        (copy / name).write_bytes(data)


def test_values_of_a_manifest_are_shortened_in_errors(tmp_path, tokenizer):
    versions = {"onnxruntime": "7" * 10_007}
    folder = artefacts.write(tmp_path, tokenizer, b"\x08\x08", versions=versions)
    with pytest.raises(ArtefactError) as caught:
        Translator(folder)
    assert len(str(caught.value)) < 1_009
    forge(folder, {**manifest_of(folder), "format_version": "7" * 10_007})
    with pytest.raises(ArtefactError, match="has format_version '777") as caught:
        Translator(folder)
    assert len(str(caught.value)) < 1_009


# Parts that do not fit


def test_parts_that_do_not_fit_are_named(tmp_path, tokenizer, copy):
    size = tokenizer.vocab_size
    renamed = artefacts.model(size).replace(b"source_ids", b"source_idx")
    refused = {
        "holds no tokenizer.model": ({"files": {signature.TOKENIZER_FILE: None}.items()}),
        "tokenizer.model: .* not a SentencePiece model": (
            {"files": {signature.TOKENIZER_FILE: b"not a model"}.items()}
        ),
        "cannot run .*model.onnx.*9.8.7": (
            {"model_bytes": b"not a model", "versions": {"onnxruntime": "9.8.7"}}
        ),
        r"has the inputs \['source_idx'\].*\['source_ids'\]": {"model_bytes": renamed},
        f"has {size} ids and the model knows {size - 1}": (
            {"vocab_size": {"source": size - 1, "target": size - 1}}
        ),
    }
    for number, (message, options) in enumerate(refused.items()):
        folder = artefacts.write(tmp_path / str(number), tokenizer, **options)
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


@pytest.mark.parametrize("name", ITEMS)
def test_a_field_of_a_wrong_type_is_refused_or_changes_nothing(name, tokenizer, tmp_path):
    folder = write(tmp_path, name, tokenizer)
    manifest = manifest_of(folder)
    (good,) = open_runner(folder, threads=1).results([ITEMS[name]])
    assert good.error is None
    tried = refused = 0
    for place in places(manifest):
        for value in ODD:
            forge(folder, replaced(manifest, place, value))
            tried += 1
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
    assert tried > 400 and refused > tried // 2


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("translate", ("format_version",), True, "format_version True"),
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


def test_a_sealed_manifest_names_no_file_outside_its_folder(copy):
    """Such a file is neither opened nor compared, whatever it holds."""
    outside = copy.parent / "outside.bin"
    outside.write_bytes(b"secret")
    (copy / "inside.bin").write_bytes(b"secret")
    manifest = manifest_of(copy)
    for name in ("../outside.bin", str(outside), "./../outside.bin", "inside.bin", "", "."):
        entry = digest(outside)
        forge(copy, {**manifest, "files": {**manifest["files"], name: entry}})
        with pytest.raises(ArtefactError, match=re.escape(f"files name {name!r}")):
            Translator(copy)


def sealed(**changes):
    """Returns a case: a name, and how its manifest changes."""
    return lambda manifest: {**manifest, **changes}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("translate", sealed(color="red"), "unknown field 'color'"),
        ("translate", sealed(files={}), "files do not name model.onnx"),
        (
            "translate",
            lambda m: {**m, "files": {**m["files"], "model.onnx": {"sha256": "a", "bytes": 1}}},
            "the entry of model.onnx is",
        ),
        ("translate", lambda m: {**m, "limits": {**m["limits"], "depth": 1}}, "limits is"),
        ("translate", lambda m: {**m, "limits": {**m["limits"], "source_length": True}}, "limits"),
        ("translate", sealed(search=None), "a search without its configuration"),
        ("translate", lambda m: {**m, "outputs": m["outputs"][::-1]}, "a search has outputs"),
        ("translate", sealed(outputs=[]), "no inputs or no outputs"),
        ("translate", sealed(ignores_padding=True), "task 'translate' with the fields"),
        ("classify", lambda m: {k: v for k, v in m.items() if k != "head"}, "with the fields"),
        ("classify", sealed(task="embed"), "head is"),
        (
            "classify",
            sealed(head={"class_name": "Classification", "config": {"labels": list("abcdefg")}}),
            "7 labels and an output of",
        ),
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
    manifest = manifest_of(copy) | {"checksum": "0" * 64}
    text = json.dumps(manifest, indent=2, ensure_ascii=True) + "\n"
    (copy / signature.MANIFEST_FILE).write_text(text)
    with pytest.raises(ArtefactError, match="its checksum should be"):
        Translator(copy)


def test_tags_are_read_from_one_input(tokenizer, tmp_path):
    folder = write(tmp_path, "answer", tokenizer)
    head = {"class_name": "TokenClassification", "config": {"labels": ["a", "b"]}}
    forge(folder, {**manifest_of(folder), "task": "tag", "head": head})
    with pytest.raises(ArtefactError, match="'tag'.*reads words"):
        open_runner(folder)
