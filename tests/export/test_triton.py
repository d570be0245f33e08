"""Export for Triton: its protocol buffers and its ONNX Runtime backend accept the repository.

The tests run no Triton. `check_backend` repeats the checks of a configuration that the backend
makes when it loads a model (`onnxruntime_backend`, `ValidateInputs` and `ValidateOutputs`).
"""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from helpers import artefacts, exports, head_artefacts, seeded_artefact

from keras_transformer.export import ExportError, export_triton, triton
from keras_transformer.export.artefact import signature

TEXT = {
    "inputs": [artefacts.described("text", "string")],
    "outputs": [artefacts.described("texts", "string"), artefacts.described("scores", "float32")],
}


@pytest.fixture(scope="module")
def tokenizer():
    return artefacts.tokenizer()


@pytest.fixture
def hand_made(tokenizer, tmp_path):
    return artefacts.write(tmp_path / "hand", tokenizer)


def parsed(path):
    """Returns a configuration, read by Triton's protocol buffers, as a dict."""
    pb2 = pytest.importorskip("tritonclient.grpc").model_config_pb2
    text_format = pytest.importorskip("google.protobuf.text_format")
    json_format = pytest.importorskip("google.protobuf.json_format")
    text = (path / triton.CONFIG_FILE).read_text("utf-8")
    message = text_format.Parse(text, pb2.ModelConfig())
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def check_backend(config, opened):
    """Repeats the checks of the backend when it loads a model."""
    onnx_types = {"TYPE_INT32": "tensor(int32)", "TYPE_FP32": "tensor(float)"}
    batched = config.get("max_batch_size", 0) > 0
    for listed, values, exact in (
        (config["input"], opened.get_inputs(), False),
        (config["output"], opened.get_outputs(), True),
    ):
        assert [value.name for value in values] == [tensor["name"] for tensor in listed]
        for tensor, value in zip(listed, values, strict=True):
            assert onnx_types[tensor["data_type"]] == value.type
            shape = [axis if isinstance(axis, int) else -1 for axis in value.shape]
            dims = tensor["reshape"].get("shape", []) if "reshape" in tensor else tensor["dims"]
            full = [-1] * batched + [int(dim) for dim in dims]  # JSON has them as strings
            if not shape:
                full = [dim for dim in full if dim != 1]  # scalars have ones, and are not compared
            assert shape[:1] in ([], [-1]) or not batched, value.name
            same = [a == b or (a == -1 and not exact) for a, b in zip(shape, full, strict=True)]
            assert all(same), f"shape of {value.name}: {shape} and {full}"


def exported(folder, tokenizer):
    return exports.artefact()


def classifier(folder, tokenizer):
    return head_artefacts.write(folder, tokenizer, "classify")


def vectors(folder, tokenizer):
    return head_artefacts.write(folder, tokenizer, "embed")


CPU = {"instance_group": [{"count": 1, "kind": "KIND_CPU"}]}
BATCHED = {"max_batch_size": 64}
BATCHED |= {"dynamic_batching": {"max_queue_delay_microseconds": "2000"}}
OPTIONS = {"device": "gpu", "instances": 3, "threads": 5, "max_batch_size": 7, "queue_delay": 0}
CHOSEN = {
    "instance_group": [{"count": 3, "kind": "KIND_GPU"}],
    "parameters": {"intra_op_thread_count": {"string_value": "5"}},
    "max_batch_size": 7,
    "dynamic_batching": {},
}
# The artefact, options, the configuration but its inputs and outputs, and the axes of the inputs.
CONFIGURATIONS = {
    "a translator": (exported, {}, CPU | BATCHED, [["-1"]]),
    "labels": (classifier, {}, CPU | BATCHED, [["-1"]]),
    "vectors": (vectors, {}, CPU | BATCHED, [["-1"]]),
    "all options": (artefacts.write, OPTIONS, CHOSEN, [["-1"]]),
    "no batches": (artefacts.write, {"max_batch_size": 0}, CPU, [["-1", "-1"]]),
    "a seed": (seeded_artefact.write, {}, CPU, [["-1", "-1"], ["1"]]),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_backend_loads_the_model_with_the_configuration(name, tokenizer, tmp_path):
    make, options, expected, dims = CONFIGURATIONS[name]
    folder = make(tmp_path / "made", tokenizer)
    path = export_triton(folder, tmp_path / "repository", "some-model_1.0", **options)
    assert path == tmp_path / "repository" / "some-model_1.0"
    config = parsed(path)
    check_backend(config, session(path / "1" / "model.onnx"))
    assert [tensor["dims"] for tensor in config.pop("input")] == dims and config.pop("output")
    assert config == {"name": path.name, "backend": "onnxruntime", **expected}


def test_models_with_a_seed_are_not_batched(tokenizer, tmp_path):
    folder = seeded_artefact.write(tmp_path / "story", tokenizer)
    with pytest.raises(ExportError, match="cannot make batches for this model: seed"):
        export_triton(folder, tmp_path / "repository", max_batch_size=2)


def test_a_text_model_is_configured_with_its_op_library(tokenizer, tmp_path):
    files = {signature.TEXT_MODEL_FILE: b"a text model"}
    folder = artefacts.write(tmp_path / "strings", tokenizer, files=files, text=TEXT)
    library = "/opt/libortextensions.so"
    path = export_triton(folder, tmp_path / "repository", text=True, op_library=library)
    assert (path / "1" / "model.onnx").read_bytes() == b"a text model"
    config = parsed(path)
    assert config["model_operations"] == {"op_library_filename": [library]}
    text = {"name": "text", "data_type": "TYPE_STRING", "dims": ["1"], "reshape": {}}
    assert config["input"] == [text]
    outputs = [(tensor["name"], tensor["dims"]) for tensor in config["output"]]
    assert outputs == [("texts", ["-1"]), ("scores", ["-1"])]
    assert config["name"] == "strings" and BATCHED.items() <= config.items()
    with pytest.raises(ExportError, match="pass the path of that library"):
        export_triton(folder, tmp_path / "repository", text=True)


def test_a_separate_file_of_weights_is_copied_beside_the_model(tokenizer, tmp_path):
    made = ir.from_proto(onnx.load_from_string(artefacts.model(tokenizer.vocab_size)))
    ir.save(made, tmp_path / "model.onnx", external_data=signature.WEIGHTS_FILE)
    names = signature.MODEL_FILE, signature.WEIGHTS_FILE
    model, weights = ((tmp_path / name).read_bytes() for name in names)
    files = {signature.WEIGHTS_FILE: weights}
    folder = artefacts.write(tmp_path / "large", tokenizer, model, files)
    path = export_triton(folder, tmp_path / "repository") / "1" / "model.onnx"
    assert {item.name for item in path.iterdir()} == set(names)
    inputs = {"source_ids": np.array([[7, 5, 3]], "i4")}
    ids, scores = session(path / "model.onnx").run(None, inputs)
    assert ids.shape == (1, 2, 3) and scores.shape == (1, 2)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"name": "a/b"}, ValueError, "`name` must be letters"),
        ({"device": "tpu"}, ValueError, "`device` must be one of"),
        ({"instances": 0}, ValueError, "`instances` must be at least 1"),
        ({"instances": True}, TypeError, "`instances` must be an integer"),
        ({"threads": 0}, ValueError, "`threads` must be at least 1"),
        ({"queue_delay": -1}, ValueError, "`queue_delay` must be at least 0"),
        ({"queue_delay": 2.5}, TypeError, "`queue_delay` must be an integer, got 2.5"),
        ({"max_batch_size": -1}, ValueError, "`max_batch_size` must be at least 0"),
        ({"max_batch_size": 2.5}, TypeError, "`max_batch_size` must be an integer, got 2.5"),
        ({"text": True}, ExportError, "holds no text model"),
        ({"op_library": "/opt/lib.so"}, ExportError, "goes with `text`"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    options, error, told, hand_made, tmp_path
):
    with pytest.raises(error, match=told):
        export_triton(hand_made, tmp_path / "repository", **options)
    assert not (tmp_path / "repository").exists()


STEPS = {signature.MODEL_FILE: None, signature.FIRST_FILE: b"1", signature.STEP_FILE: b"2"}


@pytest.mark.parametrize(
    "fields, device, told",
    [
        ({"files": STEPS, "layout": "steps"}, "cpu", "layout='loop'"),
        ({"precision": "float16"}, "cpu", "float16.*not for device='cpu'"),
        ({"precision": "int8"}, "gpu", "int8.*not for device='gpu'"),
        ({"precision": "weight_int4"}, "gpu", "weight_int4.*not for device='gpu'"),
    ],
)
def test_unsupported_artefacts_are_refused(fields, device, told, tokenizer, tmp_path):
    folder = artefacts.write(tmp_path / "made", tokenizer, **fields)
    with pytest.raises(ExportError, match=told):
        export_triton(folder, tmp_path, device=device)


def test_only_an_earlier_export_is_replaced(hand_made, tmp_path):
    for _ in range(2):
        path = export_triton(hand_made, tmp_path / "repository", "model")
    (path / triton.CONFIG_FILE).rename(path / "notes.txt")
    with pytest.raises(ExportError, match="notes.txt is not a file of such an export"):
        export_triton(hand_made, path.parent, "model")
    (path / "notes.txt").unlink()
    with pytest.raises(ExportError, match="it has no config.pbtxt"):
        export_triton(hand_made, path.parent, "model")
