"""The distortion of separated sound."""

import numpy as np


def si_sdr(sounds, clean):
    """Computes the scale-invariant signal-to-distortion ratio (Le Roux et al. 2019).

    Args:
        sounds: (N, L), the sounds to measure.
        clean: (N, L), what they should be, up to a factor.

    Returns:
        float (N,), in dB.

    Raises:
        ValueError: the shapes differ.

    Example:

    >>> round(float(si_sdr([[2.0, 2.0, 0.2, -0.2]], [[1.0, 1.0, 0.0, 0.0]])[0]), 3)
    20.0
    """
    sounds, clean = np.asarray(sounds, float), np.asarray(clean, float)
    if sounds.shape != clean.shape or sounds.ndim != 2:
        raise ValueError(f"sounds and clean must be (N, L), but are {sounds.shape}, {clean.shape}.")
    energy = np.square(clean).sum(axis=1, keepdims=True)
    wanted = (sounds * clean).sum(axis=1, keepdims=True) / (energy + 1e-12) * clean
    rest = np.square(sounds - wanted).sum(axis=1)
    return 10 * np.log10((np.square(wanted).sum(axis=1) + 1e-12) / (rest + 1e-12))
