"""Exporters say that they write a folder, and that a forward pass generates no text."""

import pytest
from helpers import exports

from keras_transformer import export
from keras_transformer.export.staging import staged

ENDINGS = ["model.onnx", "model.keras", "model.h5", "model.tflite", "MODEL.ONNX", "a.b.onnx"]


@pytest.mark.parametrize("name", ENDINGS)
def test_a_folder_is_not_named_like_a_file(name, tmp_path):
    with (
        pytest.raises(ValueError, match=rf"The export is a folder, but '.*{name}' is named like"),
        staged(tmp_path / name, lambda folder: None),
    ):
        pytest.fail("the block must not run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model", "model.v2", "v1.0", "onnx", "out.fr-en"])
def test_other_points_in_the_name_of_a_folder_are_kept(name, tmp_path):
    with staged(tmp_path / name, lambda folder: None) as folder:
        (folder / "a").write_text("")
    assert (tmp_path / name / "a").exists()


@pytest.mark.parametrize("write", [export.export_onnx, export.export_saved_model])
@pytest.mark.parametrize("kind", ["translate", "generate"])
def test_a_forward_pass_beside_a_tokenizer_is_said(write, kind, tmp_path):
    (tmp_path / "mine").write_text("")  # the warning comes before any work
    with (
        pytest.warns(UserWarning, match="Without a search, .* nothing generates text from it"),
        pytest.raises(export.ExportError, match="exists and is not an earlier export"),
    ):
        write(exports.tiny(kind), tmp_path, exports.tokenizer(), verbose=False)
