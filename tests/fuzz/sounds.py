"""Damaged sound files: the rest of the speech is read, at its own times.

    python tests/fuzz/sounds.py FOLDER_OF_WAV_FILES --count 200 --seed 3

Without a folder, a rising tone is the recording. Each file is an excerpt of a recording in one of
six containers. Packets are removed, zeroed or swapped, or the end is cut off. Half a second of
speech that is not damaged must stand in the result at its time: in formats with time stamps at its
old time, in the others after what remains before it. The same is measured for `decode_audio` of
faster-whisper, if it is installed.

The exit status is 1 if a file is refused, or if more than 2 % of the parts have another time in
formats with time stamps. (In Ogg, packets before a gap belong to the page after it.)
"""

import argparse
import collections
import io
import pathlib
import signal
import sys
import time

import numpy as np

if __name__ == "__main__":
    root = pathlib.Path(__file__).parents[2]
    sys.path.insert(0, str(root / "tests"))

import av  # noqa: E402
from helpers import recordings  # noqa: E402

from keras_transformer.sound.samples import SAMPLE_RATE, read_blocks  # noqa: E402

KINDS = ("wav", "flac", "mp3", "ogg", "fmp4", "webm")
CLOCKED = ("flac", "ogg", "fmp4", "webm")  # formats with time stamps
DAMAGES = ("removed", "zeroed", "swapped", "cut")
SECONDS, PART = 10, SAMPLE_RATE // 2
FOUND, NEAR = 0.6, 0.1  # correlation of a part that is found; seconds


def ours(data):
    """Returns the samples that this package reads."""
    return np.concatenate(list(read_blocks(data)))


def decode_audio(data):
    """Returns the samples that faster-whisper reads."""
    from faster_whisper import audio

    return audio.decode_audio(io.BytesIO(data))


def without(data, kind, removed):
    """Returns a file without some packets. The others keep their time stamps."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", recordings.KINDS[kind][0]) as out:
        stream = out.add_stream_from_template(source.streams.audio[0])
        for number, packet in enumerate(source.demux(audio=0)):
            if packet.size and number not in removed:
                packet.stream = stream
                out.mux(packet)
    return file.getvalue()


def damaged(data, kind, damage, random):
    """Returns a damaged file, and the numbers of the packets that are lost or not in place."""
    places = recordings.packets(data)
    count = len(places)
    first = int(random.integers(1, count * 2 // 3))
    run = range(first, min(count, first + int(random.integers(1, max(2, count // 8)))))
    if damage == "cut":
        first = int(random.integers(count // 3, count))
        return data[: places[first][0] + int(random.integers(0, 99))], range(first, count)
    if damage == "removed":
        if kind in CLOCKED and kind != "flac":
            return without(data, kind, run), run
        start, (last, size) = places[run[0]][0], places[run[-1]]
        return data[:start] + data[last + size :], run
    data = bytearray(data)
    if damage == "zeroed":
        for number in run:
            place, size = places[number]
            data[place : place + size] = bytes(size)
        return bytes(data), run
    other = int(random.integers(1, count))
    (one, size), (two, most) = places[first], places[other]
    size = min(size, most)
    data[one : one + size], data[two : two + size] = data[two : two + size], data[one : one + size]
    return bytes(data), {first, other}


def judge(read, data, whole, count, lost, moves):
    """Returns the number of parts at their time, of parts elsewhere, and of parts not found."""
    signal.alarm(30)
    try:
        samples = read(data)
    except Exception as error:  # any error of either reader is a refusal
        return "refused", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    outcomes, seconds = collections.Counter(), len(whole) / SAMPLE_RATE / count
    lost, loudness = np.array(sorted(lost)), np.abs(whole).mean()
    for start in range(0, len(whole) - PART + 1, PART):
        part, first = whole[start : start + PART], start / SAMPLE_RATE
        if np.abs(part).mean() < loudness / 2:
            continue  # a pause
        numbers = np.arange(int(first / seconds) - 3, int((first + 0.5) / seconds) + 4)
        if np.isin(numbers, lost).any():
            continue
        expected = first - moves * seconds * (lost < first / seconds).sum()
        if len(samples) < len(part):
            outcomes["missing"] += 1
            continue
        place, score = recordings.place_of(part, samples)
        near = abs(place - expected) < NEAR
        outcomes["missing" if score < FOUND else "right" if near else "moved"] += 1
    return outcomes, f"{len(samples) / SAMPLE_RATE:.2f} s"


def main():
    """Runs the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sounds", type=pathlib.Path, nargs="?", help="folder of WAV files")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--verbose", action="store_true", help="a line for each file")
    options = parser.parse_args()
    readers = {"ours": ours}
    try:
        import faster_whisper.audio  # noqa: F401

        readers["faster-whisper"] = decode_audio
    except ImportError:
        print("faster-whisper is not installed")
    speech = [recordings.chirp(SECONDS, SAMPLE_RATE)]
    if options.sounds is not None:
        speech = [ours(path) for path in sorted(options.sounds.glob("*.wav"))]
    found = collections.defaultdict(collections.Counter)
    for index in range(options.count):
        random = np.random.default_rng([options.seed, index])
        kind = KINDS[index % len(KINDS)]
        damage = DAMAGES[index // len(KINDS) % len(DAMAGES)]
        recording = speech[random.integers(len(speech))]
        size = min(len(recording), SECONDS * SAMPLE_RATE)
        start = int(random.integers(0, len(recording) - size + 1))
        made = recordings.written(
            kind, [(0, recording[start : start + size])], SAMPLE_RATE, size=320
        )
        whole = ours(made)
        data, lost = damaged(made, kind, damage, random)
        moves = kind not in CLOCKED and damage == "removed"
        for name, read in readers.items():
            begun = time.perf_counter()
            outcomes, note = judge(read, data, whole, len(recordings.packets(made)), lost, moves)
            taken = time.perf_counter() - begun
            counts = found[kind, damage, name]
            counts.update([outcomes] if isinstance(outcomes, str) else outcomes)
            counts["files"] += 1
            if options.verbose or taken > 10:
                print(f"{index} {kind} {damage} {name}: {outcomes} {note} {taken:.1f} s")
    for (kind, damage, name), counts in sorted(found.items()):
        parts = ("files", "refused", "right", "moved", "missing")
        print(f"{kind:5} {damage:8} {name:15}", *(f"{part} {counts[part]:3}" for part in parts))
    for name in readers:
        total = sum((found[key] for key in found if key[2] == name), collections.Counter())
        print(name, dict(total))
    kept = [found[key] for key in found if key[0] in CLOCKED and key[2] == "ours"]
    total = sum(kept, collections.Counter())
    refused = sum(counts["refused"] for (*_, name), counts in found.items() if name == "ours")
    return 1 if refused or total["moved"] > 0.02 * total["right"] else 0


if __name__ == "__main__":
    sys.exit(main())
