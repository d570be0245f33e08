"""What the command line writes for a result of each kind, one line, or one for each hypothesis."""

import json
import re
from typing import NamedTuple

import numpy as np

from keras_transformer.export.artefact.results import Labels, Outputs, Tags, Vector
from keras_transformer.export.runtime.generator import Generation


class Format(NamedTuple):
    """How a result is written: the options of the command line."""

    json: bool = False
    n_best: int | None = None
    with_prompt: bool = False


def written(number, result, options):
    """The lines for the result of a line of input, bytes.

    Args:
        number: int, of the line, from 1.
        result: of any kind that the runtime has.
        options: `Format`, or what has the same attributes.
    """
    if options.json:
        rows = [_json(result._asdict())]
    elif options.n_best is not None:
        pairs = list(_scored(result, options.with_prompt))[: options.n_best]
        rows = [f"{number}\t{score:.4f}\t{text}" for score, text in pairs]
    else:
        rows = [_best(result, options.with_prompt)]
    # A model that knows bytes can write a newline, which would shift all the lines after it.
    return "".join(re.sub(r"[\r\n]+", " ", row) + "\n" for row in rows).encode("utf-8")


def _scored(result, with_prompt):
    """Pairs of score and text, best first."""
    if isinstance(result, Labels):
        return zip(result.probabilities, result.labels, strict=True)
    texts = result.full_texts if with_prompt else result.texts
    return zip(result.scores, texts, strict=True)


def _best(result, with_prompt):
    """The best of a result as one line; an empty one where there is nothing."""
    match result:
        case Labels():
            return f"{result.label}\t{result.probability:.4f}" if result.labels else ""
        case Tags():
            return " ".join(map("/".join, zip(result.words, result.tags, strict=True)))
        case Vector():
            return "" if result.vector is None else _json(result.vector)
        case Outputs():
            return _json(result.arrays) if result.arrays else ""
        case Generation() if with_prompt:
            return result.full_text
    return result.text


def _json(value):
    return json.dumps(value, ensure_ascii=False, default=np.ndarray.tolist)
