"""Random models to serve: in ONNX, for CTranslate2, and as weights for PyTorch.

All engines must do the same work, so no sentence may end early. The models get weights with which
they never write an end token.
"""

import contextlib
import itertools
import json
from pathlib import Path

import devices
import numpy as np


def make(task):
    """Writes a random model that never ends a sentence: artefacts, CTranslate2 model, weights."""
    devices.use_checkout()
    import keras

    import keras_transformer as kt
    from keras_transformer import export

    folder = Path(task["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(task["seed"])
    config = {"vocab_size": task["vocabulary"], **task["shape"]}
    model = never_ending(kt.Transformer(**config, dropout=0.0))
    (folder / "torch").mkdir()
    np.savez(folder / "torch" / "weights.npz", **{v.path: np.asarray(v) for v in model.weights})
    (folder / "torch" / "config.json").write_text(json.dumps(config), "utf-8")
    written = ["torch"]
    with contextlib.suppress(ImportError):  # without CTranslate2
        export.export_ctranslate2(model, folder / "ctranslate2", verbose=False)
        written.append("ctranslate2")
    searches = {"greedy": kt.GreedySearch(), "beam4": kt.BeamSearch(4, 0.6)}
    kinds = itertools.product(task["precisions"], searches, ("loop", "steps"))
    for precision, name, layout in kinds:
        written.append(f"{name}-{layout}-{precision}")
        export.export_onnx(
            model,
            folder / written[-1],
            search=searches[name],
            precision=precision,
            layout=layout,
            max_length=task["length"],
            verbose=False,
        )
    return {"folder": str(folder), "written": written}


def never_ending(model):
    """Gives a post-norm model weights with which it never writes a special id.

    One channel of its output is always 4. The output matrix has -8 there for pad, begin and end,
    and 0 for all other ids: special logits are -32, and no other logit changes. So every hypothesis
    has the maximum length in every engine, without special options.
    """
    weights = {variable.path: variable for variable in model.weights}
    last = f"decoder_block_{len(model.decoder_stack.blocks) - 1}/feed_forward_norm"
    for path, rows, value in (
        (f"{last}/gamma", 0, 0.0),
        (f"{last}/beta", 0, 4.0),
        ("token_embedding/embeddings", (slice(None), 0), 0.0),
        ("token_embedding/embeddings", [0, 2, 3], 0.0),
        ("token_embedding/embeddings", ([0, 2, 3], 0), -8.0),
    ):
        array = np.array(weights[path])
        array[rows] = value
        weights[path].assign(array)
    return model
