"""Every argument of the exporters, the runtime and documents has an effect.

Another value changes a result or raises, as in `package/test_arguments.py`.
"""

import contextlib
import functools
import hashlib
import io
import json
import pathlib
import tempfile

import numpy as np
import onnx
import pytest
from helpers import exports, head_artefacts, shared
from helpers.argument_cases import (
    Case,
    Made,
    Wrong,
    arguments,
    check_effects,
    check_row,
    name_of,
)
from tensorflow.core.protobuf import saved_model_pb2

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export import documents, runtime
from keras_transformer.export.artefact import signature

FOLDER = pathlib.Path(tempfile.mkdtemp())
CHANGING = ("created", "checksum", "files")  # keys of a manifest
REFUSED = (ValueError, export.ExportError)
FOREIGN = FOLDER / "foreign"
FOREIGN.mkdir()
(FOREIGN / "notes.txt").write_text("not an export")
OTHER_TOKENIZER = kt.Tokenizer.train([line[::-1] for line in exports.LINES], 286)
NOWHERE = Wrong(runtime.ArtefactError, FOLDER / "none")


def of_folder(exporter, place="path"):
    """Returns a function of an exporter's arguments: the files that it writes, and its messages.

    Args:
        exporter: function that writes a folder.
        place: name of the argument with the folder's path.
    """

    def observe(**given):
        messages = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(messages):
            given = {place: pathlib.Path(folder) / "out", **given}
            exporter(**given)
            written = {
                str(path.relative_to(folder)): content(path)
                for path in sorted(pathlib.Path(folder).rglob("*"))
                if path.is_file() and path.name != "fingerprint.pb"
            }
        return written, bool(messages.getvalue())

    return observe


def content(path):
    """Returns what does not differ between two equal exports.

    The names of a graph, of which Keras makes new ones, and the time of an export do.
    """
    if path.name == signature.MANIFEST_FILE:
        manifest = json.loads(path.read_text("utf-8"))
        return {key: value for key, value in manifest.items() if key not in CHANGING}
    if path.suffix == ".onnx":
        graph = onnx.load(path).graph
        values = [(value.data_type, *value.dims) for value in graph.initializer]
        return sorted(exports.counts(graph).items()), sorted(values), len(graph.input)
    if path.name == "saved_model.pb":
        (graph,) = saved_model_pb2.SavedModel.FromString(path.read_bytes()).meta_graphs
        bodies = [function.node_def for function in graph.graph_def.library.function]
        constants = [
            node.attr["model"].s or node.attr["value"].tensor.SerializeToString()
            for nodes in (graph.graph_def.node, *bodies)
            for node in nodes
            if node.op in ("Const", "SentencepieceOp")
        ]
        signatures = {name: sorted(one.inputs) for name, one in graph.signature_def.items()}
        return sorted(signatures.items()), sorted(map(bytes.hex, constants))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shortlist():
    return kt.Shortlist(np.full((exports.VOCAB, 3), 9), np.arange(exports.VOCAB) < 4)


@functools.cache
def small(**sizes):
    return exports.tiny(num_layers=1, **sizes)


SEARCHED = {
    "model": Made(small),
    "tokenizer": Made(exports.tokenizer),
    "search": exports.GREEDY,
    "max_length": 5,
    "verbose": False,
}
OTHER_SEARCHED = {
    "model": Made(lambda: small(d_ff=19)),
    "path": Wrong(export.ExportError, FOREIGN),
    "tokenizer": None,
    "search": kt.GreedySearch(),
    "target_tokenizer": OTHER_TOKENIZER,
    "head": Wrong(ValueError, export.FeatureExtraction()),
    "max_length": 7,
    "options": ["target_prefix"],
    "samples": Wrong((TypeError, ValueError), [np.zeros((2, 3), "float32")]),
    "tolerance": Wrong(REFUSED, -1.0),
    "verbose": True,
}
WRITTEN = {name: SEARCHED[name] for name in ("model", "tokenizer", "max_length", "verbose")}
OTHER_WRITTEN = {
    name: OTHER_SEARCHED[name] for name in ("model", "path", "max_length", "verbose")
} | {
    "tokenizer": OTHER_TOKENIZER,
    "target_tokenizer": Wrong(ValueError, OTHER_TOKENIZER),  # this model has one vocabulary
}
EXPORTERS = [
    Case(
        export.export_onnx,
        SEARCHED,
        {
            **OTHER_SEARCHED,
            "precision": "int8",
            "max_source_length": 9,
            "fuse": False,
            "keep_float": Wrong(ValueError, ["no_such_layer/"]),
            "layout": "steps",
            "text": True,
            "shortlist": Made(shortlist),
        },
        of_folder(export.export_onnx),
    ),
    Case(
        export.export_saved_model,
        SEARCHED,
        OTHER_SEARCHED,
        of_folder(export.export_saved_model),
    ),
    Case(
        export.export_ctranslate2,
        WRITTEN,
        {
            **OTHER_WRITTEN,
            "target_tokenizer": OTHER_TOKENIZER,
            "precision": "int8",
            "tolerance": Wrong(export.ExportError, 1e-12),
        },
        of_folder(export.export_ctranslate2),
    ),
    Case(export.export_marian, WRITTEN, OTHER_WRITTEN, of_folder(export.export_marian)),
    Case(
        export.export_attention,
        {"model": Made(exports.shared_model)},
        {
            "model": Made(lambda: exports.tiny(num_layers=1)),
            "path": Wrong(export.ExportError, FOREIGN),
            "block": 0,
        },
        of_folder(export.export_attention),
    ),
    Case(
        export.export_triton,
        {"folder": Made(exports.artefact), "name": "model"},
        {
            "folder": NOWHERE,
            "repository": Wrong((OSError, export.ExportError), FOREIGN / "notes.txt"),
            "name": "other",
            "text": Wrong(export.ExportError, True),  # without `op_library`
            "op_library": Wrong(
                (ValueError, export.ExportError), "/opt/libortextensions.so"
            ),  # without `text`
            "device": "gpu",
            "instances": 2,
            "threads": 3,
            "max_batch_size": 7,
            "queue_delay": 11,
        },
        of_folder(export.export_triton, "repository"),
    ),
    Case(
        export.compare_with_keras,
        {"model": Made(exports.shared_model), "folder": Made(exports.artefact), "lines": ["two"]},
        {
            "model": Wrong(REFUSED, Made(lambda: small(vocab_size=17))),
            "folder": NOWHERE,
            "lines": ["two", "two words"],
            "references": ["zwei"],
        },
        lambda **given: [
            part for part in export.compare_with_keras(**given) if not isinstance(part, float)
        ],
    ),
]


# The runtime.


def settings(session):
    """Returns the options of a session of ONNX Runtime that decide its speed."""
    options = session.get_session_options()
    spinning = options.get_session_config_entry("session.intra_op.allow_spinning")
    return options.intra_op_num_threads, options.enable_cpu_mem_arena, spinning


OPENED = {
    "folder": NOWHERE,
    "providers": Wrong(runtime.ProviderError, ["NoSuchProvider"]),
    "threads": 2,
    "workers": 5,
    "arena": False,
    "spinning": False,
}


def of_runner(make):
    """Returns a function of a class's arguments: what decides the speed of its batches."""

    def observe(**given):
        runner = make(**given)
        return settings(runner.session), runner._workers

    return observe


@functools.cache
def opened(make, folder):
    return make(folder)


def of_method(make, folder, name):
    """Returns a function of a method's arguments: its results."""

    def observe(**given):
        found = getattr(opened(make, folder()), name)(**given)
        return str(list(found) if hasattr(found, "__next__") else found)

    return observe


def methods(make, folder, names, base, others):
    """Returns a row for each method of a runner of the runtime, which reads a folder."""
    rows = []
    for name in names:
        thing = getattr(make, name)
        batches = {key: BATCHES[key] for key in arguments(thing) if key in BATCHES}
        rows.append(Case(thing, base, {**others, **batches}, of_method(make, folder, name)))
    return rows


def classifier():
    return shared.once(
        "classifier", lambda path: head_artefacts.write(path, exports.tokenizer(), "classify")
    )


def document_translator(**given):
    """Returns what a translator of documents makes of two sentences, and its messages."""
    translate = given.pop("translate", shout)
    made = documents.DocumentTranslator(translate, **given)
    return made.text("Am 3. Oktober kam er."), made.html("<p lang='en'>a <b>b</b></p>")


def shout(sentences, mark="!"):
    """Translates sentences into capital letters, each with a mark at its end."""
    return [documents.translation.AlignedText(line.upper() + mark, ()) for line in sentences]


ONE_SAMPLE = kt.Sampling(0.9, 20)
BATCHES = {"tokens_per_batch": Wrong(ValueError, 0), "read_ahead": Wrong(ValueError, 0)}
LINE, LINES = exports.LINES[1], exports.LINES
RUNTIME = [
    Case(
        runtime.Translator,
        {"folder": Made(exports.artefact)},
        OPENED,
        of_runner(runtime.Translator),
    ),
    Case(
        runtime.Generator,
        {"folder": Made(lambda: exports.artefact(exports.SAMPLING, "generate"))},
        OPENED,
        of_runner(runtime.Generator),
    ),
    Case(runtime.Predictor, {"folder": Made(classifier)}, OPENED, of_runner(runtime.Predictor)),
    Case(
        runtime.open_runner,
        {"folder": Made(classifier)},
        {name: OPENED[name] for name in ("folder", "providers")},
        of_runner(runtime.open_runner),
    ),
    *methods(
        runtime.Translator,
        lambda: exports.artefact(exports.DETAILED),
        ("translate", "translate_stream", "n_best", "n_best_stream"),
        {"lines": [LINE]},
        {"lines": LINES},
    ),
    *methods(
        runtime.Translator,
        lambda: exports.artefact(exports.GREEDY, layout="steps"),
        ("stream",),
        {"line": LINE},
        {"line": Wrong(ValueError, b"\xff")},  # this model writes the same for all lines
    ),
    *methods(
        runtime.Translator,
        lambda: exports.artefact(exports.DETAILED),
        ("alternatives",),
        {"line": LINE},
        {"line": LINES[0], "prefix": "a", "count": 1},
    ),
    *methods(
        runtime.Generator,
        lambda: exports.artefact(exports.SAMPLING, "generate"),
        ("generate", "generate_stream", "n_best", "n_best_stream"),
        {"prompts": [LINE], "seed": 1},
        {"prompts": LINES, "seed": 2},
    ),
    *methods(
        runtime.Generator,
        lambda: exports.artefact(ONE_SAMPLE, "generate", layout="steps"),
        ("stream",),
        {"prompt": LINE, "seed": 1},
        {"prompt": LINES[0], "seed": 2, "with_prompt": True},
    ),
    *methods(
        runtime.Generator,
        lambda: exports.artefact(ONE_SAMPLE, "generate", layout="steps"),
        ("stream_steps",),
        {"item": LINE, "seed": 1},
        {"item": LINES[0], "seed": 2, "with_prompt": True},
    ),
    *methods(
        runtime.Predictor,
        classifier,
        ("predict", "predict_stream"),
        {"inputs": [LINE]},
        {"inputs": LINES},
    ),
    Case(
        documents.DocumentTranslator,
        {"translate": shout},
        {
            "translate": lambda sentences: shout(sentences, "?"),
            "language": "de",
            "target_language": "de",
            "source_prefix": ">>deu<< ",
        },
        document_translator,
    ),
    Case(
        documents.split_sentences,
        {"text": "Am 3. Oktober kam er."},
        {"text": "One.", "language": "de"},
        documents.split_sentences,
    ),
]
CASES = [*EXPORTERS, *RUNTIME]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_each_argument_has_another_value_in_its_row(case):
    check_row(case)


# Each argument is an export. These take minutes; other formats share their checks of arguments.
TIERS = {name_of(case): pytest.mark.full for case in EXPORTERS}
LONG = ("export_onnx", "export_saved_model", "export_attention", "compare_with_keras")
TIERS |= dict.fromkeys(LONG, pytest.mark.nightly)
TIERS["Generator.stream"] = pytest.mark.full


@pytest.mark.full("Translator", "Generator", "Translator.stream", "SearchRunner.stream_steps")
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=TIERS.get(name_of(case), ()), id=name_of(case)) for case in CASES],
)
def test_another_value_of_each_argument_changes_the_result_or_raises(case):
    check_effects(case)
