"""Execution providers and session options: the requested provider runs, or an error says why."""

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
    assert caplog.messages == [f"{folder} runs on {CPU}, precision float32"]


@pytest.mark.parametrize(
    ("providers", "message"),
    [
        (CPU, "must be a list such as"),
        ([], "must be a list such as"),
        (["NoSuchProvider", CPU], "NoSuchProvider is not in this onnxruntime .*serve-gpu"),
    ],
)
def test_providers_must_be_a_list_of_available_ones(folder, providers, message):
    with pytest.raises(ProviderError, match=message):
        Translator(folder, providers=providers)


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


@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("spinning", [False, True])
def test_session_options_reach_onnxruntime(folder, arena, spinning):
    session = Translator(folder, threads=2, arena=arena, spinning=spinning).session
    options = session.get_session_options()
    assert (options.intra_op_num_threads, options.enable_cpu_mem_arena) == (2, arena)
    names = ("session.intra_op.allow_spinning", "session.intra_op.spin_duration_us")
    found = [options.get_session_config_entry(name) for name in names]
    assert found == [str(int(spinning)), "10"]


def cpu_flags():
    """Returns the flags of the processor; empty where the system does not list them."""
    path = pathlib.Path("/proc/cpuinfo")
    return set(path.read_text("utf-8").split()) if path.exists() else set()


@pytest.mark.skipif("avx2" not in cpu_flags(), reason="no list of flags, or another processor")
def test_8_bit_products_saturate_with_avx2_and_without_vnni():
    assert session.products_saturate() == (not {"avx_vnni", "avx512_vnni"} & cpu_flags())


@pytest.mark.quick("1-False", "37-None")
@pytest.mark.parametrize("saturates", [None, True, False])
@pytest.mark.parametrize("rows", [1, 2, 37])
def test_products_of_the_runtime_and_of_a_proof_are_exact(tmp_path, monkeypatch, saturates, rows):
    """Their sums saturate at 16 bits on some processors, unless an option is set.

    The option makes products slower elsewhere. The proof runs with the same option.
    """
    if saturates is not None:
        monkeypatch.setattr(session, "products_saturate", lambda: saturates)
    options = session.session_options(threads=1, arena=True, spinning=True)
    found = options.get_session_config_entry("session.x64quantprecision")
    assert found == str(int(session.products_saturate()))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18]>
        product (uint8[{rows}, 64] a) => (int32[{rows}, 8] y) {{ y = MatMulInteger (a, b) }}"""
    )
    weight = onnx.helper.make_tensor("b", onnx.TensorProto.INT8, [64, 8], [127] * 512)
    model.graph.initializer.append(weight)
    onnx.save(model, path := tmp_path / "product.onnx")
    inputs = {"a": np.full((rows, 64), 255, np.uint8)}
    (ours,) = onnxruntime.InferenceSession(path, options).run(None, inputs)
    (proven,) = run_exported([path], [inputs]).outputs
    np.testing.assert_array_equal(proven["y"], ours)
    if saturates is not False:
        np.testing.assert_array_equal(ours, np.full((rows, 8), 64 * 255 * 127))


@pytest.mark.parametrize("name", ["threads", "workers"])
@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_threads_and_workers_are_limited(folder, name, count):
    most = 16 * os.cpu_count()
    with pytest.raises(
        ValueError, match=f"`{name}` must be at least 1, and at most {most} .*{count}"
    ):
        Translator(folder, **{name: count})
