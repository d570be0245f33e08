"""Parallel text as training, validation and test sets."""

from pathlib import Path
from typing import NamedTuple

from support.sets import known_corpora

from keras_transformer.text.corpora import read_parallel

VALID = ("valid", "val", "dev")  # usual names of validation files


class TextSets(NamedTuple):
    """Sets of sentence pairs, each a list of two lists of str: sources and targets.

    Attributes:
        train: the training pairs.
        valid: the pairs that select checkpoints and settings.
        tests: dict from name to test pairs.
    """

    train: list[list[str]]
    valid: list[list[str]]
    tests: dict[str, list[list[str]]]


def read_sets(
    data,
    source="en",
    target="de",
    *,
    train="train",
    valid=None,
    tests=None,
    undo_bpe=False,
    limit=None,
):
    """Reads sets from files named `NAME.LANGUAGE` or `NAME.LANGUAGE.gz`.

    Args:
        data: folder, or a name in `known_corpora.CORPORA`. Missing files of such a corpus are
            fetched into the user's cache.
        source, target: str, endings of the source and target files.
        train: str, name of the training files.
        valid: str, name of the validation files. Defaults to `None`: the first of "valid", "val"
            and "dev" that exists.
        tests: list of names of test files. Defaults to `None`: all whose name begins with "test".
        undo_bpe: bool, whether to join the pieces of subword-nmt (`"@@ "`).
        limit: int, number of pairs used per set. Defaults to `None`: all.

    Returns:
        `TextSets`.

    Raises:
        ValueError: there is no such folder or corpus, a set is missing or empty, or two files
            differ in their number of lines.
        OSError: a corpus cannot be fetched.

    Example:

    >>> sets = read_sets("multi30k")  # doctest: +SKIP
    >>> sources, targets = sets.train  # doctest: +SKIP
    """
    folder = _folder(data)
    # In reverse order, so that a plain file replaces a packed one.
    files = {path.name.removesuffix(".gz"): path for path in sorted(folder.iterdir(), reverse=True)}
    endings = f".{source}", f".{target}"

    def read(*names):
        for name in names:
            pair = [files.get(name + ending) for ending in endings]
            if all(pair):
                sides = read_parallel(*pair, undo_bpe=undo_bpe)
                if not sides[0]:
                    raise ValueError(f"{pair[0]} and {pair[1]} are empty.")
                return [side[:limit] for side in sides]
        raise ValueError(
            f"{folder} has no {' or '.join(names)} with both {' and '.join(endings)}. Rename the "
            "files, or pass their names."
        )

    if tests is None:
        found = (name for name in sorted(files) if name.startswith("test"))
        tests = [name.removesuffix(endings[0]) for name in found if name.endswith(endings[0])]
    valid = (valid,) if valid else VALID
    return TextSets(read(train), read(*valid), {name: read(name) for name in tests})


def _folder(data):
    if Path(data).is_dir():
        return Path(data)
    if data not in known_corpora.CORPORA:
        raise ValueError(f"{data} is neither a folder nor one of {sorted(known_corpora.CORPORA)}.")
    folder = Path.home() / ".cache" / "keras_transformer" / data
    known_corpora.fetch_corpus(data, folder)
    return folder
