"""Runs an exported translator in a process that can import no framework, and takes the time.

A script, `python -P apart.py JOB.npz`, that `export.compare` starts. The job holds the
artefact's `folder`, `lines`, the `seed` of a sampling, and the source ids of batches, `ids/0`,
`ids/1`, ... It prints one line of JSON: `token_ids` (of the best hypothesis, one list per
sentence), `texts` (by the text model, where there is one) and the seconds of both.

Shapes: B sentences of a batch, W hypotheses, T tokens.
"""

import json
import sys
import time

import numpy as np

FRAMEWORKS = ("tensorflow", "tensorflow_text", "keras", "jax", "torch")


def main():
    sys.modules.update(dict.fromkeys(FRAMEWORKS))  # `import tensorflow` fails from here on
    from keras_transformer.export.artefact import signature
    from keras_transformer.export.artefact.reader import read_artefact
    from keras_transformer.export.runtime.session import open_session
    from keras_transformer.export.runtime.text_session import open_text_model

    with np.load(sys.argv[1]) as file:
        job = dict(file)
    batches = [job[f"ids/{i}"] for i in range(len(job) - 3)]  # (B, S) each
    artefact = read_artefact(str(job["folder"]))
    session = open_session(artefact)

    names = {value["name"] for value in artefact.manifest["inputs"]}
    seed = {signature.SEED: job[signature.SEED]} if signature.SEED in names else {}

    def search():
        feeds = [{signature.SOURCE_IDS: batch, **seed} for batch in batches]
        runs = [session.run([signature.TOKEN_IDS], feed) for feed in feeds]
        return [row[row > 0].tolist() for (ids,) in runs for row in ids[:, 0]]  # ids (B, W, T)

    token_ids, seconds = timed(search)
    report = {"token_ids": token_ids, "seconds": seconds}
    if artefact.manifest["text"] is not None:
        feed = {signature.TEXT: job["lines"].astype(object), **seed}
        text_session = open_text_model(artefact.folder, ["CPUExecutionProvider"])

        def text_search():
            (texts,) = text_session.run([signature.TEXTS], feed)
            return texts[:, 0].tolist()

        report["texts"], report["text_seconds"] = timed(text_search)
    print(json.dumps(report))


def timed(function):
    """What the function returns, and the seconds of a second call: the first one warms up."""
    function()
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()
