"""Sound files, and frames of sound for models.

Shapes: L samples, S frames, F bands.
"""

import wave

import numpy as np

WINDOW, HOP = 256, 80  # samples of a frame, and between frame starts: 32 and 10 ms at 8 kHz
QUIET = 1e-6  # below any real power; makes the logarithm of silence finite


def read_wav(file):
    """Reads a WAV file of one channel with 16 bits per sample.

    Args:
        file: a path, or an open binary file.

    Returns:
        (L,) float32 from -1 to 1, and the samples per second, int.

    Raises:
        ValueError: the file is not a WAV file, or has other channels or bits.
        OSError: there is no such file.

    Example:

    >>> samples, rate = read_wav("7_jackson_0.wav")  # doctest: +SKIP
    """
    try:
        with wave.open(file if hasattr(file, "read") else str(file)) as sound:
            kind = sound.getnchannels(), sound.getsampwidth()
            rate, data = sound.getframerate(), sound.readframes(sound.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{file} is not a readable WAV file: {error}.") from error
    if kind != (1, 2):
        raise ValueError(
            f"{file} must have one channel and 2 bytes per sample, but has {kind[0]} and {kind[1]}."
        )
    return np.frombuffer(data, "<i2").astype("float32") / 2**15, rate


def log_bands(samples, bands=24):
    """Computes a spectrogram: logarithms of the power in bands of equal width, frame by frame.

    A frame has 256 samples, and one begins every 80. Sound shorter than a frame is padded with
    silence. No frame is all 0, so frames of 0 may pad a batch.

    Args:
        samples: (L,) from -1 to 1.
        bands: F, int. They divide the frequencies up to half the sample rate.

    Returns:
        (S, F) float32, roughly from -2 to 2, low frequencies first.

    Raises:
        ValueError: `samples` does not have one axis, or `bands` does not lie in [1, 128].

    Example:

    >>> log_bands(np.sin(np.arange(8000.0))).shape
    (97, 24)
    """
    samples = np.asarray(samples, np.float64)
    if samples.ndim != 1 or not 1 <= bands <= WINDOW // 2:
        raise ValueError(
            f"samples must have one axis, and bands lie in [1, {WINDOW // 2}], but the shape is "
            f"{samples.shape} and bands is {bands}."
        )
    samples = np.pad(samples, (0, max(0, WINDOW - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(frames))[:, 1:] ** 2  # without the mean
    power = power[:, : power.shape[1] // bands * bands].reshape(len(power), bands, -1).mean(axis=2)
    return (np.log(power + QUIET) / 5 + 1).astype("float32")
