"""The example of a published model runs on the small one that it makes."""

import importlib.util
import pathlib

import pytest

from keras_transformer.export.runtime import Translator

pytestmark = [pytest.mark.slow, pytest.mark.full]
SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "pretrained.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("pretrained_example", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_imports_trains_exports_and_serves(script, tmp_path, capsys):
    small = script.make_small_model(tmp_path / "small")
    script.main(["--folder", str(small), "--output", str(tmp_path), "--seconds", "0"])
    told = capsys.readouterr().out
    assert "1 epochs, loss" in told and "after, served:" in told
    served = list(Translator(tmp_path / "onnx").translate(script.HELD_OUT))
    assert all(
        f"  {line} -> {text}" in told for line, text in zip(script.HELD_OUT, served, strict=True)
    )
