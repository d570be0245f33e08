"""Artefacts that are damaged, foreign, incomplete or mixed up: each an error that says so."""

import json
import os
import random
import shutil

import numpy as np
import onnxruntime
import pytest
from support import artefacts, runtime_process

from keras_transformer.export.artefact import reader, signature
from keras_transformer.export.artefact.manifest import checksum, seal, unseal
from keras_transformer.export.runtime import (
    ArtefactError,
    Translator,
    open_runner,
    session,
)

TRIES = 200


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    """An artefact with a file of every kind."""
    others = {signature.WEIGHTS_FILE: bytes(range(256)), signature.TEXT_MODEL_FILE: b"text" * 97}
    return artefacts.write(tmp_path_factory.mktemp("artefact"), tokenizer, files=others.items())


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def rewritten(folder, **fields):
    """Replaces fields of `artefact.json` and seals it again: it is not damaged, it lies."""
    path = folder / signature.MANIFEST_FILE
    manifest = unseal(path.read_bytes())
    path.write_bytes(seal({**manifest, **fields}))


def test_an_undamaged_copy_is_served(copy, tokenizer):
    (result,) = Translator(copy, threads=1).n_best(["two dogs"])
    assert result[:2] == artefacts.expected_hypotheses(tokenizer, "two dogs")


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_every_random_damage_is_found(copy, damage):
    """Half of 200 tries each: files cut off at a random place, and single bits turned over."""
    draw = random.Random(f"20170612 {damage}")
    names = sorted(path.name for path in copy.iterdir())
    tried = set()
    for _ in range(TRIES // 2):
        name = draw.choice(names)
        data = (copy / name).read_bytes()
        place = draw.randrange(len(data))
        if damage == "cut":
            damaged = data[:place]
        else:
            bit = 1 << draw.randrange(8)
            damaged = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
        (copy / name).write_bytes(damaged)
        with pytest.raises(ArtefactError, match=name.replace(".", r"\.")):
            Translator(copy)
        (copy / name).write_bytes(data)
        tried.add(name)
    assert tried == set(names) and len(names) == 5
    Translator(copy, threads=1)  # and it is served again, once nothing is damaged


def test_the_layout_of_the_manifest_counts_too(copy):
    """Where JSON could be read all the same: a lost last newline, an `e` turned into an `E`."""
    path = copy / signature.MANIFEST_FILE
    data = path.read_bytes()
    for place in [*range(0, len(data), 11), len(data) - 1]:
        for damaged in (
            data[:place],
            data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :],
            data[:place] + data[place + 1 :],
        ):
            path.write_bytes(damaged)
            with pytest.raises(ArtefactError):
                reader.read_task(copy)


def test_the_shell_names_the_damage_and_gives_status_2(copy):
    (copy / signature.MODEL_FILE).write_bytes(b"")
    status, output, errors = runtime_process.translate(b"two dogs\n", copy)
    assert (status, output) == (2, "")
    assert errors.startswith("error: ") and "model.onnx has 0 bytes" in errors


@pytest.mark.parametrize(
    "name",
    [
        signature.MODEL_FILE,
        signature.TOKENIZER_FILE,
        signature.MANIFEST_FILE,
        signature.WEIGHTS_FILE,
        signature.TEXT_MODEL_FILE,
    ],
)
@pytest.mark.parametrize("instead", ["nothing", "folder"])
def test_a_missing_file_is_named(copy, name, instead):
    (copy / name).unlink()
    if instead == "folder":
        (copy / name).mkdir()
    with pytest.raises(ArtefactError, match=f"{name} cannot be read"):
        Translator(copy)


NAMES = [signature.MODEL_FILE, signature.TOKENIZER_FILE, signature.MANIFEST_FILE]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without FIFOs")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("instead", ["FIFO", "device"])
def test_a_file_that_never_ends_is_refused(copy, name, instead):
    (copy / name).unlink()
    os.mkfifo(copy / name) if instead == "FIFO" else (copy / name).symlink_to("/dev/zero")
    with pytest.raises(ArtefactError, match=f"{name} cannot be read .*no regular file"):
        Translator(copy)


@pytest.mark.parametrize("name", NAMES)
def test_a_sparse_file_is_refused_by_its_size(copy, name):
    os.truncate(copy / name, 2**40)
    with pytest.raises(ArtefactError, match=f"{name} has {2**40} bytes"):
        Translator(copy)


@pytest.mark.parametrize("call", [Translator, open_runner])
def test_a_path_with_a_nul_is_no_artefact(call):
    with pytest.raises(ArtefactError, match="is not an artefact: .*null"):
        call("out\0/onnx")


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_changes_while_it_is_opened_is_noticed(copy, moved, monkeypatch):
    """Another model of as many bytes, written or moved there after the checksum was compared."""
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
def test_a_folder_that_is_switched_there_and_back_opens_no_other_model(
    tmp_path, tokenizer, monkeypatch, by
):
    one = artefacts.write(tmp_path / "one", tokenizer)
    scores = [-5.0, -7.0]
    two = artefacts.write(
        tmp_path / "two", tokenizer, artefacts.model(tokenizer.vocab_size, score=scores)
    )
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


@pytest.mark.parametrize("change", [lambda path: path.chmod(0o640), lambda path: _link(path)])
def test_a_new_mode_or_hard_link_while_it_is_opened_is_no_change(copy, monkeypatch, change):
    opens = onnxruntime.InferenceSession

    def changing(*arguments, **named):
        change(copy / signature.TOKENIZER_FILE)
        return opens(*arguments, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", changing)
    assert Translator(copy, threads=1).translate(["two dogs"]) != [""]


def _link(path):
    os.link(path, path.with_name("backup"))


@pytest.mark.skipif(not os.path.exists("/proc/kmsg"), reason="a file of Linux that never ends")
def test_a_manifest_of_the_kernel_is_not_read(copy):
    manifest = copy / signature.MANIFEST_FILE
    manifest.unlink()
    manifest.symlink_to("/proc/kmsg")
    with pytest.raises(ArtefactError, match="artefact.json has 0 bytes"):
        Translator(copy)


def test_a_working_directory_that_is_gone_holds_no_artefact(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ArtefactError, match="onnx is not an artefact"):
        Translator("onnx")


def test_what_a_manifest_says_is_shortened_in_errors(tmp_path, tokenizer):
    versions = {"onnxruntime": "7" * 10_007}
    folder = artefacts.write(tmp_path, tokenizer, b"\x08\x08", versions=versions)
    with pytest.raises(ArtefactError) as caught:
        Translator(folder)
    assert len(str(caught.value)) < 1_009
    path = folder / signature.MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": "7" * 10_007}))
    with pytest.raises(ArtefactError, match="has format_version '777") as caught:
        Translator(folder)
    assert len(str(caught.value)) < 1_009


def test_a_file_that_goes_while_it_is_opened_is_named(copy, monkeypatch):
    load = reader.load_tokenizer

    def removing(path):
        path.unlink()
        return load(path)

    monkeypatch.setattr(reader, "load_tokenizer", removing)
    with pytest.raises(ArtefactError, match="tokenizer.model cannot be read"):
        Translator(copy)


@pytest.mark.parametrize("made", ["nothing", "file", "empty folder"])
def test_what_is_no_artefact_is_refused(tmp_path, made):
    path = tmp_path / "other"
    if made == "file":
        path.write_text("{}")
    elif made == "empty folder":
        path.mkdir()
    with pytest.raises(ArtefactError, match="is not an artefact.*Pass the folder that"):
        Translator(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes, and a manifest has from 1"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "artefact.json: .*recursion"),  # deeper than the parser goes
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
    path = copy / signature.MANIFEST_FILE
    manifest = json.loads(path.read_text())
    manifest["format_version"] = signature.FORMAT_VERSION + 1
    manifest["checksum"] = checksum(manifest)
    path.write_text(json.dumps(manifest, indent=2) + "\n")
    with pytest.raises(
        ArtefactError, match=f"format_version {signature.FORMAT_VERSION + 1}.*reads"
    ):
        Translator(copy)


def test_a_manifest_laid_out_anew_was_edited(copy):
    path = copy / signature.MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text())))
    with pytest.raises(ArtefactError, match="was cut off or edited"):
        Translator(copy)


@pytest.mark.parametrize("name", [signature.MODEL_FILE, signature.TOKENIZER_FILE])
def test_a_file_of_another_artefact_is_found(copy, name):
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[::-1])  # as many bytes
    with pytest.raises(ArtefactError, match=f"{name} was changed after the export"):
        Translator(copy)


@pytest.mark.parametrize("task", ["generate", "forward"])
def test_an_artefact_for_another_task_is_refused(copy, task):
    rewritten(copy, task=task)
    with pytest.raises(ArtefactError, match=f"exported for the task '{task}'.*serves 'translate'"):
        Translator(copy)


def test_a_search_that_wants_random_numbers_is_refused(copy):
    inputs = [artefacts.described("source_ids", "int32"), artefacts.described("seed", "int32")]
    rewritten(copy, inputs=inputs)
    with pytest.raises(ArtefactError, match=r"inputs \['source_ids', 'seed'\]"):
        Translator(copy)


def test_an_artefact_without_a_tokenizer_is_refused(tmp_path, tokenizer):
    folder = artefacts.write(tmp_path, tokenizer, files={signature.TOKENIZER_FILE: None}.items())
    with pytest.raises(ArtefactError, match="holds no tokenizer.model"):
        Translator(folder)


def test_a_tokenizer_that_is_none_is_refused(tmp_path, tokenizer):
    files = {signature.TOKENIZER_FILE: b"not a model"}.items()
    folder = artefacts.write(tmp_path, tokenizer, files=files)
    with pytest.raises(ArtefactError, match="tokenizer.model: .* not a SentencePiece model"):
        Translator(folder)


def test_a_tokenizer_larger_than_the_model_is_refused(copy, tokenizer):
    size = tokenizer.vocab_size
    rewritten(copy, vocab_size={"source": size - 1, "target": size - 1})
    with pytest.raises(ArtefactError, match=f"has {size} ids and the model knows {size - 1}"):
        Translator(copy)


def test_a_model_that_onnxruntime_refuses_names_the_release_that_ran_it(tmp_path, tokenizer):
    folder = artefacts.write(tmp_path, tokenizer, b"not a model", versions={"onnxruntime": "9.8.7"})
    with pytest.raises(ArtefactError, match="cannot run .*model.onnx.*9.8.7"):
        Translator(folder)


def test_a_model_with_other_inputs_than_the_manifest_says_is_refused(tmp_path, tokenizer):
    model = artefacts.model(tokenizer.vocab_size).replace(b"source_ids", b"source_idx")
    folder = artefacts.write(tmp_path, tokenizer, model)
    with pytest.raises(ArtefactError, match=r"has the inputs \['source_idx'\].*\['source_ids'\]"):
        Translator(folder)
