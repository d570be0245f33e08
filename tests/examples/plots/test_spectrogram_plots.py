"""Sound over time and frequency, and attention on the same time axis."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

from support import plots  # noqa: E402

FRAMES = np.random.default_rng(3).normal(size=(17, 5))


def test_axes_are_seconds_and_kilohertz(tmp_path):
    figure = plots.plot_spectrogram(FRAMES, 0.5, 4000, title="seven")
    (panel,) = figure.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("time in s", "frequency in kHz")
    assert panel.images[0].get_extent() == [0, 0.5, 0, 4]
    np.testing.assert_array_equal(panel.images[0].get_array(), FRAMES.T)
    assert panel.images[0].origin == "lower" and figure.get_suptitle() == "seven"
    figure.savefig(tmp_path / "sound.png")
    assert (tmp_path / "sound.png").read_bytes().startswith(b"\x89PNG")


def test_attention_shares_the_time_axis():
    weights = np.random.default_rng(4).random((3, 7))
    figure = plots.plot_spectrogram(FRAMES, 0.5, 4000, weights, ["$", "b", "</s>"])
    sound, attention = figure.axes
    assert attention.get_shared_x_axes().joined(sound, attention)
    np.testing.assert_array_equal(attention.images[0].get_array(), weights)
    assert attention.images[0].get_extent() == [0, 0.5, 2.5, -0.5]
    assert [label.get_text() for label in attention.get_yticklabels()] == [r"\$", "b", "</s>"]
    assert attention.get_xlabel() == "time in s"


@pytest.mark.parametrize(
    "frames, weights", [(FRAMES[0], None), (FRAMES, np.ones((3, 7))), (FRAMES, np.ones(2))]
)
def test_frames_weights_and_tokens_must_fit(frames, weights):
    with pytest.raises(ValueError, match="there are 2 tokens"):
        plots.plot_spectrogram(frames, 0.5, 4000, weights, ["a", "b"])
