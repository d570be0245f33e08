"""The numeric tests on Keras' JAX backend, in another process."""

import collections
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import keras
import pytest

pytestmark = pytest.mark.full

TESTS = pathlib.Path(__file__).parents[1]
FILES = ("masks", "attention", "positions", "embeddings", "blocks", "models")
FILES += ("base", "pooling", "signals", "ssru", "recomputation")
# Optimizing operations that run once would take most of the time.
COMPILE_QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


@pytest.mark.slow
def test_the_numeric_tests_pass_on_jax(request, tmp_path):
    """JAX must run as many as this process, at least one per file, and skip none."""
    pytest.importorskip("jax", reason="JAX, the second backend, is missing")
    if keras.backend.backend() == "jax":
        pytest.skip("this is JAX already")
    names = [f"test_{name}" for name in FILES]
    report = tmp_path / "report.xml"
    # One process: all tests share compiled programs.
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "numeric"]
    command += ["-p", "no:cacheprovider", "--junitxml", str(report)]
    command += [*(str(*TESTS.rglob(f"{name}.py")) for name in names)]
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": COMPILE_QUICKLY}
    result = subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=840
    )
    # The exit status is ignored, because JAX can crash at exit after all tests passed.
    told = result.stdout[-5000:] + result.stderr[-2000:]
    assert report.exists(), told
    suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    assert [suite.get(kind) for kind in ("failures", "errors", "skipped")] == ["0", "0", "0"], told
    ran = collections.Counter(
        case.get("classname").rpartition(".")[2] for case in suite.iter("testcase")
    )
    here = collections.Counter(
        item.path.stem for item in request.session.items if item.get_closest_marker("numeric")
    )
    for name in names:
        assert ran[name] >= max(here[name], 1), f"{name}: {ran[name]} of {here[name]} ran on JAX"
