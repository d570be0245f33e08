"""Execution providers and session options: the requested provider runs, or an error says why."""

import itertools
import logging
import os
import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import artefacts

from keras_transformer.export.artefact import signature
from keras_transformer.export.proof import run_exported
from keras_transformer.export.runtime import ProviderError, Translator, session
from keras_transformer.export.runtime.session import CPU, CUDA

AZURE = "AzureExecutionProvider"  # in every CPU wheel; runs no ONNX operator


def test_the_provider_is_an_attribute_and_logged_once(folder, caplog):
    with caplog.at_level(logging.INFO, logger="keras_transformer"):
        translator = Translator(folder, threads=1)
        translator.translate(artefacts.LINES)
    assert translator.provider == CPU
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder} runs on {CPU}, precision float32"
    ]


def test_providers_must_be_a_list_of_available_ones(folder):
    for providers in (CPU, [], ()):
        with pytest.raises(ProviderError, match="must be a list such as"):
            Translator(folder, providers=providers)
    with pytest.raises(
        ProviderError, match="NoSuchProvider is not in this onnxruntime .*serve-gpu"
    ):
        Translator(folder, providers=["NoSuchProvider", CPU])


@pytest.mark.parametrize("providers", [None, [CUDA], [(CUDA, {"device_id": 0}), CPU]])
def test_a_silent_fallback_from_cuda_is_an_error(folder, cuda_that_falls_back, providers):
    with pytest.raises(ProviderError, match=f"{CUDA} was asked for.*fell back to {CPU}.*CPU"):
        Translator(folder, providers=providers)
    assert cuda_that_falls_back == [1]  # CUDA's libraries were loaded first
    assert Translator(folder, providers=[CPU]).provider == CPU


@pytest.mark.skipif(AZURE not in onnxruntime.get_available_providers(), reason=f"no {AZURE} here")
@pytest.mark.parametrize("providers", [[AZURE], [AZURE, CPU]])
def test_a_provider_that_runs_no_node_is_refused(folder, providers):
    with pytest.raises(ProviderError, match=f"{AZURE} was asked for.*fell back to {CPU}.*whole"):
        Translator(folder, providers=providers)


@pytest.mark.parametrize(
    ("precision", "provider", "mend"),
    [
        ("float16", CPU, "Serve it on CUDA"),
        ("float16", AZURE, "Serve it on CUDA"),
        ("float16", "XnnpackExecutionProvider", "Serve it on CUDA"),
        ("int8", CUDA, "precision='float16'"),
        ("int16x8", CUDA, "precision='weight_int8'"),
    ],
)
def test_a_precision_that_does_not_suit_the_provider_is_refused(
    tmp_path, tokenizer, monkeypatch, precision, provider, mend
):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, provider, CPU])
    folder = artefacts.write(tmp_path, tokenizer, precision=precision)
    with pytest.raises(ProviderError, match=f"precision '{precision}'.*{mend}"):
        Translator(folder, providers=[provider])


def test_the_default_provider_has_kernels_for_the_precision(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    chosen = {name: session.choose_providers(None, name)[0] for name in signature.PRECISIONS}
    on_the_cpu = {"int8", "int16x8"}  # CUDA has no kernel that rounds inputs to 8 bits
    assert chosen == {name: CPU if name in on_the_cpu else CUDA for name in signature.PRECISIONS}


def test_session_options_reach_onnxruntime(folder):
    for arena, spinning in itertools.product((False, True), repeat=2):
        session = Translator(folder, threads=2, arena=arena, spinning=spinning).session
        options = session.get_session_options()
        assert options.intra_op_num_threads == 2
        assert options.enable_cpu_mem_arena == arena
        entry = options.get_session_config_entry("session.intra_op.allow_spinning")
        assert entry == str(int(spinning))
        assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "10"


def cpu_flags():
    """Returns the flags of the processor; empty where the system does not list them."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


@pytest.mark.skipif("avx2" not in cpu_flags(), reason="no list of flags, or another processor")
def test_8_bit_products_saturate_with_avx2_and_without_vnni():
    assert session.products_saturate() == (not {"avx_vnni", "avx512_vnni"} & cpu_flags())


def product(path, rows=2):
    """Writes a model of one 8-bit product, whose sums saturate at 16 bits on some processors."""
    weight = onnx.helper.make_tensor("b", onnx.TensorProto.INT8, [64, 8], [127] * 512)
    values = [("a", "UINT8", [rows, 64]), ("y", "INT32", [rows, 8])]
    source, result = (
        onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, dtype), shape)
        for name, dtype, shape in values
    )
    node = onnx.helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    opset = onnx.helper.make_opsetid("", 18)
    graph = onnx.helper.make_graph([node], "product", [source], [result], [weight])
    onnx.save(onnx.helper.make_model(graph, ir_version=10, opset_imports=[opset]), path)
    return {"a": np.full((rows, 64), 255, np.uint8)}


@pytest.mark.parametrize("rows", [1, 2, 37])
def test_products_of_the_runtime_and_of_a_proof_are_exact(tmp_path, rows):
    inputs, exact = product(tmp_path / "product.onnx", rows), 64 * 255 * 127
    options = session.session_options(threads=1, arena=True, spinning=True)
    opened = onnxruntime.InferenceSession(tmp_path / "product.onnx", options)
    (outputs,) = run_exported([tmp_path / "product.onnx"], [inputs]).outputs
    for found in (opened.run(None, inputs)[0], outputs["y"]):
        np.testing.assert_array_equal(found, np.full((rows, 8), exact))


@pytest.mark.parametrize("saturates", [True, False])
def test_the_option_for_exact_products_is_set_where_they_saturate(tmp_path, monkeypatch, saturates):
    """Elsewhere it makes products slower. The proof runs with the same option."""
    monkeypatch.setattr(session, "products_saturate", lambda: saturates)
    options = session.session_options(threads=1, arena=True, spinning=True)
    assert options.get_session_config_entry("session.x64quantprecision") == str(int(saturates))
    inputs = product(tmp_path / "product.onnx")
    opened = onnxruntime.InferenceSession(tmp_path / "product.onnx", options)
    (outputs,) = run_exported([tmp_path / "product.onnx"], [inputs]).outputs
    np.testing.assert_array_equal(outputs["y"], opened.run(None, inputs)[0])


@pytest.mark.parametrize("name", ["threads", "workers"])
@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_threads_and_workers_are_limited(folder, name, count):
    most = 16 * os.cpu_count()
    with pytest.raises(
        ValueError, match=f"`{name}` must be at least 1, and at most {most} .*{count}"
    ):
        Translator(folder, **{name: count})
