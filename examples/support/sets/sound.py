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


def write_wav(path, samples, rate):
    """Writes a WAV file of one channel with 16 bits per sample.

    Args:
        path: path of the file.
        samples: (L,) numbers. The loudest sample gets 0.9 of the range.
        rate: int, samples per second.

    Example:

    >>> write_wav("a.wav", np.sin(np.arange(8000.0)), 8000)  # doctest: +SKIP
    """
    scaled = np.asarray(samples) * (0.9 * 2**15 / (np.abs(samples).max() + 1e-9))
    with wave.open(str(path), "wb") as sound:
        sound.setparams((1, 2, rate, 0, "NONE", ""))
        sound.writeframes(scaled.astype("<i2").tobytes())


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


def sound_of(frames, rounds=32):
    """Estimates the sound of a spectrogram with the fast Griffin-Lim algorithm.

    A spectrogram has no phases. Each round takes the phases of the nearest real sound (Griffin and
    Lim 1984), with the momentum of Perraudin et al. (2013).

    Args:
        frames: (S, 128), as `log_bands` with 128 bands computes them.
        rounds: int. Defaults to 32.

    Returns:
        (L,) float32, where L = 80 (S - 1) + 256.

    Raises:
        ValueError: `frames` has another shape.

    Example:

    >>> sound_of(np.zeros((97, 128))).shape
    (7936,)
    """
    frames = np.asarray(frames, np.float64)
    if frames.ndim != 2 or frames.shape[1] != WINDOW // 2 or not len(frames):
        raise ValueError(f"frames must be (S, {WINDOW // 2}) with S > 0, but are {frames.shape}.")
    power = np.maximum(np.exp(5 * (frames - 1)) - QUIET, 0)
    sizes = np.pad(np.sqrt(power), ((0, 0), (1, 0)))  # the mean is 0
    places = np.arange(len(frames))[:, None] * HOP + np.arange(WINDOW)
    window = np.broadcast_to(np.hanning(WINDOW), places.shape)
    weights = np.bincount(places.ravel(), np.square(window).ravel()) + 1e-3
    spectra = sizes * np.exp(2j * np.pi * np.random.default_rng(0).random(sizes.shape))
    before = 0
    for _ in range(rounds):
        parts = np.fft.irfft(spectra) * window
        sound = np.bincount(places.ravel(), parts.ravel()) / weights
        real = np.fft.rfft(sound[places] * window)
        ahead = real + 0.99 * (real - before)
        spectra, before = sizes * ahead / (np.abs(ahead) + 1e-9), real
    return sound.astype("float32")
