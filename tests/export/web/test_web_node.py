"""The npm package in Node.js: Python's results, odd lines, and refused artefacts."""

import json
import os
import subprocess

import pytest
from helpers import artefacts, exports, node, web

from keras_transformer.export.artefact import signature
from keras_transformer.export.runtime import Translator
from keras_transformer.search import BeamSearch, ForbiddenWords, RepetitionPenalty, Terms

ODD = [
    "",
    " \u2003\u0085\x1f",
    "\ufeff",
    "a man\0 rides",
    "\0a",
    "a man\r\n",
    "a man\n\n",
    "\ud83d",
    "a \udc00 b",
    "dog " * 40,
    "two dogs",
]


def load(node_folder, folders, lines=()):
    request = {"folders": [str(folder) for folder in folders], "lines": list(lines)}
    return node.run(node_folder, "load.js", request)


@pytest.mark.full
def test_sentences_are_translated_as_in_python_and_again_without_a_network(node_folder, tmp_path):
    artefact, lines = exports.artefact(), web.sentences(500)
    site = web.site(tmp_path, node_folder, artefact)
    request = {"site": str(site), "cache": str(tmp_path / "cache"), "lines": lines, "again": 20}
    found = node.run(node_folder, "translate.js", request)
    assert len({tuple(result["texts"]) for result in found["results"]}) > 100
    model = exports.shared_model("translate")
    web.assert_as_in_python(found["results"], artefact, lines, model)
    web.assert_same(found["offline"], found["results"][:20])
    loaded = [state["loaded"] for state in found["progress"]]
    assert loaded == sorted(loaded) and len(loaded) > 3
    assert loaded[-1] == found["progress"][-1]["total"] > 14e6  # includes the runtime


@pytest.mark.full
def test_odd_lines_and_artefacts_are_answered_as_in_python(node_folder, tmp_path):
    """JSON keeps lone surrogates, so Python and Node.js read the same lines."""
    tokenizer, other = artefacts.tokenizer(), exports.tokenizer()
    sizes = tokenizer.vocab_size, other.vocab_size
    known = sorted(max(tokenizer.encode(line)) for line in artefacts.LINES)[2]
    nan, missing = float("nan"), float("-inf")
    config = {"rate": 1e-09, "odd": -0.0, "name": 'ü "3, 4"\\ 5\x7f😀', "n": 7, "x": 1.0}
    made = {
        "plain": {},
        "fewer": {"model_bytes": artefacts.model(sizes[0], score=[[-1.0, missing]])},
        "odd manifest": {"search": {"class_name": "BeamSearch", "config": config}},
        "second tokenizer": {
            "model_bytes": artefacts.model(max(sizes)),
            "files": {signature.TARGET_TOKENIZER_FILE: other.model},
            "vocab_size": {"source": max(sizes), "target": max(sizes)},
        },
        "fails": {"model_bytes": artefacts.model(sizes[0], known=known)},
        "nan": {"model_bytes": artefacts.model(sizes[0], score=[[nan, 0.0]])},
    }
    folders = [artefacts_of(tmp_path / name, **fields) for name, fields in made.items()]
    lines = [*ODD, *artefacts.LINES]
    *same, fails, nans = load(node_folder, folders, lines)
    for folder, results in zip(folders, same, strict=False):
        web.assert_as_in_python(results, folder, lines)
    assert [len(result["texts"]) for result in same[1][-5:]] == [1] * 5
    assert {result["error"] for result in nans[-5:]} == {"the model gave the scores [NaN, 0]"}
    errors = [result["error"] for result in fails[-5:]]
    assert all(error is None or error.startswith("onnxruntime failed") for error in errors)
    assert 0 < sum(error is None for error in errors) < 5  # neighbours of bad lines are answered


CONTROLLED = BeamSearch(
    5, 0.6, constraints=[Terms(), ForbiddenWords(), RepetitionPenalty(1.0)], min_length=2
)


@pytest.mark.full
def test_options_of_a_call_give_the_results_of_python(node_folder):
    given = ("target_prefix", "beam_width")
    folder, lines = exports.artefact(CONTROLLED, options=given), web.sentences(7)
    terms = [["hat"], [], ["two", "red"], [], [], ["dog"], []]
    calls = [
        {},
        {"max_length": 4, "min_length": 3},
        {"max_length": [3, 5, 2, 7, 4, 3, 6], "beam_width": 2, "length_penalty": 1.5},
        {"target_prefix": "the dog", "repetition_penalty": 1.7},
        {"target_prefix": ["the", "", "a man", "", "", "red", ""], "forbidden_words": ["dog"]},
        {"terms": ["hat"]},
        {"terms": terms, "max_length": 9},
        {"terms": [[]] * 7},
    ]
    refused = {
        "TypeError: 'top_k' was passed, but this artefact takes the options [": {"top_k": 3},
        "RangeError: beam_width must be at least 1 and at most 5, got 6.": {"beam_width": 6},
        "RangeError: max_length must be at least 1 and at most": {"max_length": 0},
        "TypeError: max_length must be an integer, got 2.5": {"max_length": 2.5},
        "RangeError: `max_length` has 2 values, and there are 7 lines.": {"max_length": [2, 3]},
        "TypeError: `target_prefix` must be a text, got number.": {"target_prefix": 5},
        'RangeError: The target\'s tokenizer has no pieces for "" of terms': {"terms": [""]},
        "RangeError: max_length 3 is below min_length 4.": {"max_length": 3, "min_length": 4},
        "RangeError: max_length 1 is below min_length 2.": {"max_length": [9, 9, 1, 9, 9, 9, 9]},
    }
    request = {"folder": str(folder), "lines": lines, "calls": [*calls, *refused.values()]}
    found = node.run(node_folder, "options.js", request)["found"]
    translator = Translator(folder, threads=1)
    for call, results in zip(calls, found, strict=False):
        for result, expected in zip(results, translator.n_best(lines, **call), strict=True):
            assert result["texts"][0] == expected.texts[0] and result["error"] is None, call
            assert abs(result["scores"][0] - expected.scores[0]) < 1e-4, call
    assert len({json.dumps(results) for results in found[: len(calls)]}) == len(calls) - 1
    for message, error in zip(refused, found[len(calls) :], strict=True):
        assert error.startswith(message)


def changed(old, new, name=signature.MANIFEST_FILE):
    """Returns a function that writes an artefact with other bytes in a file."""

    def make(folder):
        path = artefacts_of(folder) / name
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new))
        return folder

    return make


def made_with(**fields):
    return lambda folder: artefacts_of(folder, **fields)


def made_with_tokenizer(data):
    return made_with(files={signature.TOKENIZER_FILE: data})


REFUSED = {
    "cannot be read": lambda folder: folder,
    "is not JSON": changed(b"{", b"<"),
    "does not say format": changed(b'"format":', b'"form":'),
    "has format_version 2": changed(b'"format_version": 1', b'"format_version": 2'),
    "checksum should be": changed(b'"bytes": 1', b'"bytes": 2'),
    "was changed after the export": changed(b"dog", b"dig", signature.TOKENIZER_FILE),
    "was exported for the task 'generate'": made_with(task="generate"),
    "with the inputs [source_ids,seed]": made_with(
        inputs=[artefacts.described(name, "int32") for name in ("source_ids", "seed")]
    ),
    "has the layout 'steps'": made_with(
        files=dict.fromkeys(signature.MODEL_FILES["steps"], b"x"), layout="steps"
    ),
    "past 2 GB": made_with(files={signature.WEIGHTS_FILE: b"x"}),
    "holds no tokenizer.model": made_with_tokenizer(None),
    "of the package tokenizers (JSON)": made_with_tokenizer(b'{"version": "1.0"}'),
    "are not a SentencePiece model": made_with_tokenizer(b"\xff\xff"),
    "ids and the model knows 10": made_with(vocab_size={"source": 10, "target": 10}),
    "cannot run model.onnx": made_with(model_bytes=b"\x08\x07nothing"),
}


def artefacts_of(folder, **fields):
    return artefacts.write(folder, artefacts.tokenizer(), **fields)


@pytest.mark.full
def test_errors_say_why_an_artefact_is_refused(node_folder, tmp_path):
    folders = [make(tmp_path / str(i) / "made") for i, make in enumerate(REFUSED.values())]
    for part, error in zip(REFUSED, load(node_folder, folders), strict=True):
        assert isinstance(error, dict) and error["name"] == "ArtefactError", (part, error)
        assert part in error["message"]


@pytest.mark.full
def test_node_tests_of_calls_aborts_and_cache_pass(node_folder, tmp_path):
    folder = artefacts_of(tmp_path)
    done = subprocess.run(
        ["node", "--test", "drivers/behaviour.js"],
        cwd=node_folder,
        env=os.environ | {"ARTEFACT": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "# pass 15" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("arguments", [[], ["-p", "tsconfig.types.json"]], ids=["check", "write"])
def test_types_are_checked_and_written(node_folder, arguments):
    tsc = node_folder / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run(
        ["node", str(tsc), *arguments], cwd=node_folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    if arguments:
        types = (node_folder / "types" / "src" / "translator.d.ts").read_text()
        assert "static load(url: string | URL" in types and "onProgress?:" in types


def test_versions_are_exact_and_no_registry_is_named():
    package = json.loads((node.PACKAGE / "package.json").read_text())
    assert "dependencies" not in package  # `vendor/` holds them
    assert all(version[0].isdigit() for version in package["devDependencies"].values())
    lock = json.loads((node.PACKAGE / "package-lock.json").read_text())
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]


def test_the_service_worker_caches_every_script_of_the_page():
    text = (node.PACKAGE / "service_worker.js").read_text()
    names = [f'"{path.stem}"' for path in (node.PACKAGE / "src").iterdir()]
    names += [f'"page/{path.name}"' for path in (node.PACKAGE / "page").iterdir()]
    assert [name for name in names if name not in text] == []
