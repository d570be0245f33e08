"""Manifests with a wrong value in one field, under a right checksum: refused, or harmless."""

import copy
import json
import re

import pytest
from support import array_search, artefacts, head_artefacts

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.manifest import checksum, unseal
from keras_transformer.export.runtime import ArtefactError, answers, open_runner
from keras_transformer.export.runtime.__main__ import main
from keras_transformer.export.runtime.session import ProviderError
from keras_transformer.export.runtime.trials import made_up_inputs

ODD = (None, True, -1, 1.5, 10**30, "x", "\ud800", [], [1], {}, {"a": 1})
ITEMS = {"translate": "two dogs", "classify": "two dogs", "answer": "who ?\ttwo dogs"}
ITEMS |= {"series": "[[1, 2]]", "mixed": '{"source_ids": "a man", "numbers": [1, 2]}'}
ITEMS |= {"transcribe": "[5]"}


def write(folder, name, tokenizer):
    """The artefact of a name in `ITEMS`."""
    if name == "translate":
        text = {"inputs": [artefacts.described("text", "string")]}
        text["outputs"] = [artefacts.described("texts", "string")]
        return artefacts.write(folder, tokenizer, text=text, layout="loop")
    if name == "transcribe":
        return array_search.write(folder, tokenizer)
    return head_artefacts.write(folder, None if name == "series" else tokenizer, name)


def forge(folder, manifest):
    """Writes a manifest that no exporter writes, with the checksum that it should have."""
    manifest = {**manifest, "checksum": checksum(manifest)}
    text = json.dumps(manifest, indent=2, ensure_ascii=True) + "\n"
    (folder / signature.MANIFEST_FILE).write_text(text)


def places(value, place=()):
    """Yields the path to every value inside `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*place, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*place, key))


def replaced(manifest, place, value):
    """A copy with another value at a place."""
    changed = inner = copy.deepcopy(manifest)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


@pytest.mark.parametrize("name", ITEMS)
def test_a_field_of_a_wrong_type_is_refused_or_changes_nothing(name, tokenizer, tmp_path):
    folder = write(tmp_path, name, tokenizer)
    manifest = unseal((folder / signature.MANIFEST_FILE).read_bytes())
    (good,) = answers(open_runner(folder, threads=1), [ITEMS[name]])
    assert good.error is None
    tried = refused = 0
    for place in places(manifest):
        for value in ODD:
            forge(folder, replaced(manifest, place, value))
            tried += 1
            try:
                runner = open_runner(folder, threads=1)
                made_up_inputs(runner.manifest)
                (found,) = answers(runner, [ITEMS[name]])
            except (ArtefactError, ProviderError):
                refused += 1
            except Exception as error:
                pytest.fail(f"{place} = {value!r}: {error!r}")
            else:
                assert type(found) is type(good), (place, value)
    assert tried > 400 and refused > tried // 2


@pytest.mark.parametrize("class_name", [[], {}, None, 1])
def test_a_head_of_no_class_is_refused(class_name, tokenizer, tmp_path):
    folder = write(tmp_path, "classify", tokenizer)
    manifest = unseal((folder / signature.MANIFEST_FILE).read_bytes())
    forge(folder, replaced(manifest, ("head", "class_name"), class_name))
    with pytest.raises(ArtefactError, match="artefact.json: .*damaged or was edited.*head is"):
        open_runner(folder)


@pytest.mark.parametrize("name", ["format_version", "ir_version"])
def test_a_number_is_no_boolean(name, tokenizer, tmp_path):
    folder = write(tmp_path, "translate", tokenizer)
    manifest = unseal((folder / signature.MANIFEST_FILE).read_bytes())
    forge(folder, {**manifest, name: True})
    with pytest.raises(ArtefactError, match=f"{name} (is )?True"):
        open_runner(folder)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("inputs", 0, "dtype"), "int64", r"input 'source_ids' \('int32', .*\('int64'"),
        (("inputs", 0, "dtype"), "string", r"says \('string'"),
        (("inputs", 0, "axes"), ["batch"], "input 'source_ids'"),
        (("inputs", 0, "axes"), ["batch", 10**13], "input 'source_ids'"),
    ],
)
def test_inputs_are_those_of_the_model(place, value, message, tokenizer, tmp_path, capsys):
    folder = write(tmp_path, "classify", tokenizer)
    manifest = unseal((folder / signature.MANIFEST_FILE).read_bytes())
    forge(folder, replaced(manifest, place, value))
    with pytest.raises(ArtefactError, match=message):
        open_runner(folder)
    assert main([str(folder), "--check"]) == 2
    assert re.search(message, " ".join(capsys.readouterr().out.split()))


def test_tags_are_read_from_one_input(tokenizer, tmp_path):
    folder = write(tmp_path, "answer", tokenizer)
    manifest = unseal((folder / signature.MANIFEST_FILE).read_bytes())
    head = {"class_name": "TokenClassification", "config": {"labels": ["a", "b"]}}
    forge(folder, {**manifest, "task": "tag", "head": head})
    with pytest.raises(ArtefactError, match="'tag'.*reads words"):
        open_runner(folder)
