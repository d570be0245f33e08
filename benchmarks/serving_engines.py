"""The engines of `serving.py`, each in a separate process, as in a server.

    python benchmarks/serving_engines.py CONFIG_AS_JSON

A process imports no framework that its engine does not need. It reads jobs from standard input and
writes answers to standard output, one JSON object per line:

    {"batches": [[[5, 7, 3], ...], ...]}  ->  {"seconds": [...], "ids": [[[9, 3], ...], ...],
                                               "peak_mb": ..., "resident_mb": ...}
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

FRAMEWORKS = ("tensorflow", "keras", "torch", "jax", "onnx")
# Maximum of generated tokens beyond the source (section 6.1), if no length is forced.
EXTRA_LENGTH = 50


class OnnxRuntime:
    """Our artefact, in one file or in two."""

    def __init__(self, config):
        from keras_transformer.export.artefact.reader import read_artefact
        from keras_transformer.export.runtime import session

        use_sessions(config.get("spin"), config.get("exact"))
        artefact = read_artefact(config["folder"])
        self.session = session.open_session(artefact, threads=config["threads"])

    def __call__(self, rows):
        from keras_transformer.padding import pad_rows

        token_ids, _ = self.session.run(None, {"source_ids": pad_rows(rows)})
        return [row[row > 0].tolist() for row in token_ids[:, 0]]


def use_sessions(spin=None, exact=None):
    """Sets the microseconds of waiting and the option for exact products in all sessions.

    Args:
        spin: int, -1 for ONNX Runtime's default. Defaults to `None`: the runtime's choice.
        exact: bool. Defaults to `None`: the runtime's choice.
    """
    from keras_transformer.export.runtime import session

    if spin is not None:
        session.SPIN_MICROSECONDS = spin
    if exact is not None:
        session.products_saturate = lambda: exact


class CTranslate2:
    """CTranslate2 with the same search rules; its hypotheses are ranked by ours."""

    def __init__(self, config):
        import ctranslate2

        folder = Path(config["folder"])
        self.tokens = json.loads((folder / "shared_vocabulary.json").read_text("utf-8"))
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.translator = ctranslate2.Translator(
            str(folder),
            compute_type=config["precision"],
            inter_threads=1,
            intra_threads=config["threads"],
        )
        self.length = config["forced_length"]
        self.options = {
            "beam_size": config["beam_width"],
            "num_hypotheses": config["beam_width"],
            "length_penalty": config["length_penalty"],
            "min_decoding_length": self.length or 0,
            "return_end_token": True,
            "return_scores": True,
        }

    def __call__(self, rows):
        found = self.translator.translate_batch(
            [[self.tokens[i] for i in row[:-1]] for row in rows],  # CTranslate2 adds the end token
            max_decoding_length=self.length or max(map(len, rows)) + EXTRA_LENGTH,
            **self.options,
        )
        return [[self.ids[token] for token in self._best(result)] for result in found]

    def _best(self, result):
        from common import ranked

        return ranked(result.hypotheses, result.scores, self.options["length_penalty"])[0][0]


class PyTorch:
    """The same search written in PyTorch, for forced lengths only."""

    def __init__(self, config):
        import numpy as np
        import torch
        from torch_search import TorchTranslator

        torch.set_num_threads(config["threads"])
        folder = Path(config["folder"])
        model = json.loads((folder / "config.json").read_text("utf-8"))
        with np.load(folder / "weights.npz") as weights:
            self.translator = TorchTranslator(dict(weights), model)
        self.options = config["beam_width"], config["forced_length"], config["length_penalty"]

    def __call__(self, rows):
        from keras_transformer.padding import pad_rows

        return self.translator.search(pad_rows(rows), *self.options)[0][:, 0].tolist()


ENGINES = {
    "ours": OnnxRuntime,
    "two files": OnnxRuntime,
    "ctranslate2": CTranslate2,
    "torch": PyTorch,
}


def memory():
    """Returns peak and current resident memory of this process in MB (2^20 bytes)."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        peak, resident = (int(fields[name].split()[0]) / 1024 for name in ("VmHWM", "VmRSS"))
    except OSError:  # not Linux: only the peak; macOS counts bytes
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak, resident = peak / (2**20 if sys.platform == "darwin" else 1024), None
    return {"peak_mb": peak, "resident_mb": resident}


def run(engine, job, clock):
    """Returns seconds and results of each batch, and memory."""
    seconds, ids = [], []
    for rows in job["batches"]:
        start = clock()
        ids.append(engine(rows))
        seconds.append(clock() - start)
    return {"seconds": seconds, "ids": ids, **memory()}


def main():
    config = json.loads(sys.argv[1])
    # Output of libraries goes to stderr; only answers go to stdout.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.modules.update(dict.fromkeys(name for name in FRAMEWORKS if name != config["engine"]))
    clock = time.process_time if config["clock"] == "cpu" else time.perf_counter
    engine = ENGINES[config["engine"]](config)
    for line in sys.stdin:
        print(json.dumps(run(engine, json.loads(line), clock)), file=answers, flush=True)


if __name__ == "__main__":
    main()
