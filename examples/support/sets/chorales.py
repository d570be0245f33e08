"""Chorales in four voices: Bach's, and synthetic ones.

A chorale is an int array (S, 4): the notes of soprano, alto, tenor and bass in each sixteenth, as
MIDI pitches (60 is middle C); -1 is silence.

Shapes: S sixteenths, N chorales.
"""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np

VOICES = ("soprano", "alto", "tenor", "bass")
SILENCE = -1
SIXTEENTHS = 4  # in a quarter, the beat
FILE = "Jsb16thSeparated.json.gz"

# Tokens: ids 0 to 3 are special. NOTES ids (silence and the pitches) of each kind follow. Kinds 0
# to 3 are the soprano in the first to the last sixteenth of a beat, 4 to 6 the other voices.
LOWEST, HIGHEST = 36, 81
NOTES = HIGHEST - LOWEST + 2
KINDS = SIXTEENTHS + len(VOICES) - 1
FIRST_ID = 4
VOCAB_SIZE = FIRST_ID + KINDS * NOTES


def to_ids(chorale):
    """Returns the tokens of a chorale: the four voices of each sixteenth, soprano first.

    Args:
        chorale: int array (S, 4) that begins on a beat.

    Returns:
        int32 (4 S,).

    Raises:
        ValueError: a pitch is out of range.

    Example:

    >>> to_ids(np.array([[36, -1, -1, 81]])).tolist()
    [5, 192, 239, 332]
    """
    silent = chorale == SILENCE
    if not np.all(silent | (chorale >= LOWEST) & (chorale <= HIGHEST)):
        raise ValueError(
            f"pitches must be from {LOWEST} to {HIGHEST}, or {SILENCE} for silence, but range "
            f"from {chorale.min()} to {chorale.max()}."
        )
    voice = np.arange(len(VOICES))
    place = np.arange(len(chorale))[:, None] % SIXTEENTHS
    kind = np.where(voice == 0, place, voice + SIXTEENTHS - 1)  # (S, 4)
    note = np.where(silent, 0, chorale - LOWEST + 1)
    return (FIRST_ID + kind * NOTES + note).reshape(-1).astype(np.int32)


def to_chorale(ids):
    """Returns the chorale (S, 4) of tokens (4 S,)."""
    note = (np.asarray(ids) - FIRST_ID) % NOTES
    return np.where(note > 0, note + LOWEST - 1, SILENCE).reshape(-1, len(VOICES))


def read_chorales(folder, limit=None):
    """Reads Bach's chorales in sixteenths, in the split of Boulanger-Lewandowski et al. 2012.

    Args:
        folder: folder of `Jsb16thSeparated.json.gz` from the JSB-Chorales-dataset: a dict from
            "train", "valid" and "test" to chorales, lists of four pitches for each sixteenth.
        limit: int, number of chorales used per set. Defaults to `None`: all.

    Returns:
        Dict from "train", "valid" and "test" to a list of N chorales.

    Raises:
        ValueError: the file has another form.
        FileNotFoundError: the file is missing.

    Example:

    >>> read_chorales("music")["train"][0][0].tolist()  # doctest: +SKIP
    [74, 70, 65, 58]
    """
    path = Path(folder, FILE)
    sets = json.loads(gzip.decompress(path.read_bytes()))
    chorales = {}
    for name in ("train", "valid", "test"):
        if name not in sets:
            raise ValueError(f"{path} has no set {name!r}, only {sorted(sets)}.")
        try:
            chorales[name] = [np.array(one, np.int32) for one in sets[name][:limit]]
        except ValueError as error:
            raise ValueError(f"{path}, {name}: expected rows of four pitches: {error}.") from error
        for number, one in enumerate(chorales[name]):
            if one.ndim != 2 or one.shape[1] != len(VOICES):
                raise ValueError(
                    f"{path}, {name}, chorale {number}: expected rows of four pitches, got an "
                    f"array of shape {one.shape}."
                )
    return chorales


# Triads of the major key by their distance from the keynote, and the triads that may follow.
CHORDS = {"I": (0, 4, 7), "ii": (2, 5, 9), "IV": (5, 9, 0), "V": (7, 11, 2), "vi": (9, 0, 4)}
FOLLOWING = {
    "I": ("IV", "V", "vi", "ii"),
    "ii": ("V",),
    "IV": ("V", "I", "ii"),
    "V": ("I", "I", "vi"),
    "vi": ("ii", "IV"),
}
BOTTOM = (62, 57, 50, 40)  # of each voice; it sings within the octave above


def made_chorales(limit=None):
    """Makes chorales of a few chords in several keys, one chord per beat, with passing notes.

    Args:
        limit: int, number of chorales used per set. Defaults to `None`: all, 60 for training and
            10 each in the other sets.

    Returns:
        As `read_chorales`, the same in every call: chorales of 64 sixteenths.
    """
    draw = np.random.default_rng(0)
    chorales = [_made_chorale(draw) for _ in range(80)]
    parts = {"train": chorales[:60], "valid": chorales[60:70], "test": chorales[70:]}
    return {name: some[:limit] for name, some in parts.items()}


def _made_chorale(draw):
    key, chord = int(draw.integers(-3, 4)), "I"
    rows, last = [], np.array(BOTTOM) + 6
    for beat in range(16):
        degrees = [(key + degree) % 12 for degree in CHORDS[chord]]
        notes = [
            # The note of the chord nearest to the last note of the voice.
            min(
                (pitch for pitch in range(low, low + 13) if pitch % 12 in degrees),
                key=lambda pitch: (abs(pitch - before), pitch),
            )
            for low, before in zip(BOTTOM, last, strict=True)
        ]
        # The bass sings the root.
        notes[3] = next(p for p in range(BOTTOM[3], BOTTOM[3] + 12) if p % 12 == degrees[0])
        if draw.random() < 0.5:  # the soprano moves to a random note of the chord
            notes[0] = int(
                draw.choice([p for p in range(BOTTOM[0], BOTTOM[0] + 13) if p % 12 in degrees])
            )
        beat_rows = np.tile(notes, (SIXTEENTHS, 1))
        if abs(notes[0] - last[0]) in (3, 4) and beat:
            rows[-1][2:, 0] = (notes[0] + last[0]) // 2  # a passing note before the beat
        rows.append(beat_rows)
        last = np.array(notes)
        chord = "V" if beat == 14 else "I" if beat == 15 else draw.choice(FOLLOWING[chord])
    return np.concatenate(rows).astype(np.int32)


def transpositions(chorale, lowest, highest):
    """Returns the steps by which a chorale can move within the range of each voice.

    Args:
        chorale: int array (S, 4).
        lowest, highest: four pitches each, the range of each voice.

    Returns:
        Range of half tones; 0 is always in it.

    Example:

    >>> transpositions(np.array([[70, 65, 60, 50]]), [60] * 3 + [45], [71, 80, 80, 70])
    range(0, 2)
    """
    sung = np.ma.masked_equal(chorale, SILENCE)
    down = (np.array(lowest) - sung.min(axis=0)).max()
    up = (np.array(highest) - sung.max(axis=0)).min()
    return range(min(0, int(down)), max(0, int(up)) + 1)


def transpose(chorale, steps):
    """Moves a chorale by half tones. Silence stays."""
    return np.where(chorale == SILENCE, SILENCE, chorale + steps)


def notes(voice):
    """Returns the notes of a voice. Equal neighbours are one note.

    Args:
        voice: int array (S,).

    Returns:
        List of (pitch, first sixteenth, sixteenth after the last), without silence.

    Example:

    >>> notes(np.array([60, 60, -1, 62]))
    [(60, 0, 2), (62, 3, 4)]
    """
    edges = [0, *(np.flatnonzero(np.diff(voice)) + 1).tolist(), len(voice)]
    spans = zip(edges, edges[1:], strict=False)
    return [(int(voice[a]), a, b) for a, b in spans if b > a and voice[a] != SILENCE]


def write_midi(path, chorale, beats_a_minute=72, program=19):
    """Writes a chorale as a MIDI file with one track for each voice.

    Args:
        path: str or path-like.
        chorale: int array (S, 4).
        beats_a_minute: number, quarters per minute. Defaults to 72.
        program: int, the instrument of General MIDI from 0. Defaults to 19, the church organ.

    Raises:
        ValueError: mido is not installed.
    """
    try:
        import mido
    except ModuleNotFoundError as error:
        raise ValueError(
            "MIDI files need mido, which is not installed: pip install mido"
        ) from error
    file = mido.MidiFile(ticks_per_beat=480)
    ticks = file.ticks_per_beat // SIXTEENTHS
    tempo = mido.MetaMessage("set_tempo", tempo=mido.bpm2tempo(beats_a_minute))
    file.tracks.append(mido.MidiTrack([tempo]))
    for channel, (name, voice) in enumerate(zip(VOICES, np.transpose(chorale), strict=True)):
        events = [mido.MetaMessage("track_name", name=name)]
        events.append(mido.Message("program_change", channel=channel, program=program))
        now = 0
        for pitch, start, end in notes(voice):
            for kind, place in (("note_on", start), ("note_off", end)):
                wait, now = (place - now) * ticks, place
                options = dict(channel=channel, note=pitch, velocity=72, time=wait)
                events.append(mido.Message(kind, **options))
        file.tracks.append(mido.MidiTrack(events))
    file.save(path)


SOUND_FONT = Path("/usr/share/sounds/sf2/default-GM.sf2")  # Debian: fluid-soundfont-gm


def render_midi(path):
    """Renders a MIDI file to a WAV file of the same name, with FluidSynth.

    Args:
        path: path of the MIDI file.

    Returns:
        Path of the WAV file, or `None` if FluidSynth or its sounds are not installed (Debian's
        packages fluidsynth and fluid-soundfont-gm).

    Raises:
        subprocess.CalledProcessError: FluidSynth failed.
    """
    path = Path(path)
    if shutil.which("fluidsynth") is None or not SOUND_FONT.exists():
        return None
    sound = path.with_suffix(".wav")
    command = ["fluidsynth", "-ni", "-q", "-r", "22050", "-F", sound, SOUND_FONT, path]
    subprocess.run(command, check=True, capture_output=True)
    return sound
