"""Spectra of sounds, and classical filters that remove noise from them.

Shapes: N sounds, L samples, S = L / 256 + 1 frames, F = 257 frequencies.
"""

import numpy as np

HOP = 256  # samples; a frame has two hops, 64 ms at 8 kHz
# The root of a periodic Hann window: applied twice, overlapping frames sum to the sound.
WINDOW = np.sin(np.pi * np.arange(2 * HOP) / (2 * HOP))


def spectra(sounds):
    """Computes the Fourier transform of frames that overlap by half.

    Args:
        sounds: float (N, L); L must be a multiple of 256.

    Returns:
        complex64 (N, S, F).

    Raises:
        ValueError: `sounds` has another shape.

    Example:

    >>> spectra(np.zeros((2, 1280))).shape
    (2, 6, 257)
    """
    sounds = np.asarray(sounds)
    if sounds.ndim != 2 or sounds.shape[1] % HOP:
        raise ValueError(f"sounds must be (N, a multiple of {HOP}), but is {sounds.shape}.")
    sounds = np.pad(sounds, ((0, 0), (HOP, HOP)))
    frames = np.lib.stride_tricks.sliding_window_view(sounds, 2 * HOP, axis=1)[:, ::HOP]
    return np.fft.rfft(frames * WINDOW).astype("complex64")


def rows_of(spectra):
    """Returns real and imaginary parts, float32 (N, S, 2 F), of spectra (N, S, F)."""
    return np.concatenate([spectra.real, spectra.imag], axis=-1)


def sounds_of(spectra):
    """Returns the sounds (N, L) of spectra (N, S, F): the inverse of `spectra`.

    Example:

    >>> sounds = np.arange(1280.0)[None]
    >>> bool(np.allclose(sounds_of(spectra(sounds)), sounds, atol=1e-2))
    True
    """
    frames = np.fft.irfft(spectra) * WINDOW
    halves = frames[:, 1:, :HOP] + frames[:, :-1, HOP:]
    return halves.reshape(len(spectra), -1).astype("float32")


def noise_power(power, quantile, factor):
    """Estimates the power (N, 1, F) of noise from quiet moments of each frequency."""
    return factor * np.quantile(power, quantile, axis=1, keepdims=True) + 1e-9


def spectral_subtraction(noisy, quantile=0.3, factor=2.0, floor=0.1):
    """Subtracts the power of the noise from each frame (Boll 1979; Berouti et al. 1979).

    Args:
        noisy: complex (N, S, F).
        quantile: float, the quantile of the power over time that estimates the noise.
        factor: float, times this quantile is subtracted.
        floor: float, the smallest gain.

    Returns:
        complex (N, S, F).
    """
    power = np.square(np.abs(noisy))
    gain = 1 - noise_power(power, quantile, factor) / (power + 1e-9)
    return noisy * np.sqrt(np.maximum(gain, floor**2))


def wiener_filter(noisy, quantile=0.3, factor=2.0, floor=0.1, memory=0.95):
    """Applies a Wiener filter with the decision-directed estimate of Ephraim and Malah (1984).

    Args:
        noisy, quantile, factor, floor: as in `spectral_subtraction`.
        memory: float, the weight of the previous frame in the estimate of the speech's level.

    Returns:
        complex (N, S, F).
    """
    power = np.square(np.abs(noisy))
    ratio = power / noise_power(power, quantile, factor)
    gains, before = np.empty_like(ratio), np.zeros_like(ratio[:, 0])
    for frame in range(ratio.shape[1]):
        now = ratio[:, frame]
        level = memory * before + (1 - memory) * np.maximum(now - 1, 0)
        gains[:, frame] = level / (1 + level)
        before = np.square(gains[:, frame]) * now
    return noisy * np.maximum(gains, floor)
