"""Attention is laid over the pictures it looks at."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

from support import plots  # noqa: E402

DRAW = np.random.default_rng(5)
MAPS = DRAW.random((2, 3, 7, 5)).astype("float32")  # 2 pictures, 3 maps
NAMES = ["mean", "head 1", "head 2"]


@pytest.mark.parametrize("shape", [(2, 28, 20), (2, 28, 20, 1), (2, 28, 20, 3)])
def test_each_picture_has_a_row_and_each_map_a_column(tmp_path, shape):
    pictures = DRAW.random(shape)
    figure = plots.plot_picture_attention(pictures, MAPS, ["boot", "bag"], NAMES)
    panels = np.array(figure.axes[:8]).reshape(2, 4)
    assert [panel.get_title() for panel in panels[0]] == ["picture", *NAMES]
    assert [row[0].get_ylabel() for row in panels] == ["boot", "bag"]
    for row, picture, maps in zip(panels, pictures, MAPS, strict=True):
        for panel in row:
            np.testing.assert_array_equal(
                np.squeeze(panel.images[0].get_array()), picture.squeeze()
            )
        for panel, weights in zip(row[1:], maps, strict=True):
            shown = panel.images[1]
            np.testing.assert_allclose(shown.get_array(), weights / weights.max())
            assert shown.get_extent() == panel.images[0].get_extent()
    assert figure.axes[-1].get_ylabel() == "weight / largest weight"
    figure.savefig(tmp_path / "pictures.png")
    assert (tmp_path / "pictures.png").read_bytes().startswith(b"\x89PNG")


def test_weights_of_zero_are_drawn():
    figure = plots.plot_picture_attention(np.ones((1, 4, 4)), np.zeros((1, 1, 2, 2)), ["a"], ["b"])
    assert not np.asarray(figure.axes[1].images[1].get_array()).any()


@pytest.mark.parametrize(
    "pictures, maps, problem",
    [
        (np.ones((2, 28)), MAPS, "pictures must be"),
        (np.ones((2, 28, 28)), MAPS[0], "pictures must be"),
        (np.ones((3, 28, 28)), MAPS, "the numbers do not fit"),
        (np.ones((2, 28, 28)), MAPS[:, 1:], "the numbers do not fit"),
    ],
)
def test_pictures_and_maps_must_fit(pictures, maps, problem):
    with pytest.raises(ValueError, match=problem):
        plots.plot_picture_attention(pictures, maps, ["boot", "bag"], NAMES)
