"""Damaged files through every reader: refused with a clear error, or read.

    python tests/fuzz/readers.py --count 100000 --seed 5 --out readers.json

The cases run in forked processes with limits on memory and time. A crash, a hang or a huge
allocation is counted and does not end the run. An error is clear if it is a `ValueError` or an
`OSError`, but not a bare `UnicodeDecodeError`. The files of an artefact have checksums, so changed
files must be refused.
"""

import fuzzing  # isort: split

import collections
import json
import os
import pathlib
import resource
import signal
import sys
import tempfile
import time

import keras
import numpy as np
import tokenizers
from damage import LINES, damaged
from helpers import artefacts, bergamot_model
from safetensors.numpy import save_file
from support.marian_writer import write_model

import keras_transformer as kt
from keras_transformer.export import export_ctranslate2
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.importers import bert, marian_shortlist
from keras_transformer.importers import ctranslate2_binary as ctranslate2
from keras_transformer.importers import marian_binary as marian
from keras_transformer.importers.checkpoint import read_tensors
from keras_transformer.text.json_tokenizer import JsonTokenizer
from keras_transformer.training.checkpoints import read_checkpoint, write_checkpoint

WRONG = ("unclear error", "changed content", "crash", "hang")
OUTCOMES = ("refused", "read", *WRONG)
CHUNK, SECONDS, MEMORY = 250, 20, 2 * 2**30  # cases of a process; limits of a case


def artefact(folder):
    artefacts.write(folder, kt.Tokenizer.train(LINES, vocab_size=272))
    return read_artefact


def sentencepiece(folder):
    kt.Tokenizer.train(LINES, vocab_size=272).save(folder / "tokenizer.model")
    return lambda folder: kt.Tokenizer.load(folder / "tokenizer.model")


def json_tokenizer(folder):
    ids = {"<unk>": 0, **{letter: i for i, letter in enumerate("abcdefgh", 1)}}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [], unk_token="<unk>"))
    made.save(str(folder / "tokenizer.json"))
    return lambda folder: JsonTokenizer.load(folder / "tokenizer.json")


def safetensors(folder):
    arrays = {f"layer.{i}.weight": np.full((3, 5), i, "float32") for i in range(4)}
    save_file({**arrays, "half": np.ones(7, "float16")}, folder / "model.safetensors")
    return read_tensors


def bert_config(folder):
    sizes = {"vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"model_type": "bert", "intermediate_size": 24, "max_position_embeddings": 29}
    (folder / "config.json").write_text(json.dumps({**more, **sizes}), "utf-8")
    return bert.CONFIG.read_config


def marian_model(folder):
    write_model(folder / "model.bin", bergamot_model.arrays(60), bergamot_model.CONFIG)
    return lambda folder: marian.read_model(folder / "model.bin")


def shortlist(folder):
    (folder / "lex.s2t.bin").write_bytes(bergamot_model.shortlist_bytes())
    return lambda folder: marian_shortlist.read_shortlist(folder / "lex.s2t.bin")


def ctranslate2_model(folder):
    model = kt.Transformer(23, num_layers=1, d_model=16, num_heads=2, d_ff=8)
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "out"
        export_ctranslate2(model, path, verbose=False)
        (folder / "model.bin").write_bytes((path / "model.bin").read_bytes())
    return lambda folder: ctranslate2.read_model(folder / "model.bin")


def checkpoint(folder):
    arrays = {"model/a": np.arange(6.0), "optimizer/b": np.ones((2, 3), "float32")}
    write_checkpoint(folder / "state.npz", arrays, {"epoch": 3})
    return lambda folder: read_checkpoint(folder / "state.npz")


def glossary(folder):
    (folder / "terms.tsv").write_text("red car\trotes Auto\nhouse\tHaus\n", "utf-8")
    return lambda folder: kt.Glossary.read(folder / "terms.tsv")


def keras_model(folder):
    x = keras.Input((None,), dtype="int32")
    keras.Model(x, kt.EncoderBlock(2, 8)(kt.TokenEmbedding(23, 16)(x))).save(folder / "m.keras")

    def load(folder):
        try:
            keras.models.load_model(folder / "m.keras")
        except Exception as error:  # Keras guarantees no error type
            raise ValueError(str(error)) from error

    return load


READERS = {
    reader.__name__: reader
    for reader in (
        *(artefact, sentencepiece, json_tokenizer, safetensors, bert_config, marian_model),
        *(shortlist, ctranslate2_model, checkpoint, glossary, keras_model),
    )
}
RARE = {"keras_model": 0.01, "artefact": 0.05}  # share of the cases for slow readers


def judge(kind, read, samples, seed, index, folder):
    """Returns the outcome of a case, and the error."""
    random = np.random.default_rng([seed, index])
    name = sorted(samples)[random.integers(0, len(samples))]
    changed = damaged(samples[name], random, name.endswith((".json", ".tsv")))
    for file, data in samples.items():
        (folder / file).write_bytes(changed if file == name else data)
    try:
        read(folder)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError):
            return "crash", told
        is_clear = isinstance(error, ValueError | OSError) and type(error) is not UnicodeDecodeError
        return "refused" if is_clear else "unclear error", told
    same = changed == samples[name]
    return ("changed content", name) if kind == "artefact" and not same else ("read", "")


def work(kind, read, samples, seed, indices, send):
    """Runs cases in a forked process."""
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name, data in samples.items():
            (pathlib.Path(folder) / name).write_bytes(data)
        read(pathlib.Path(folder))  # undamaged files must be readable
        for index in indices:
            signal.alarm(SECONDS)
            send((index, *judge(kind, read, samples, seed, index, pathlib.Path(folder))))
    signal.alarm(0)


def run(kind, read, samples, seed, indices):
    """Yields `(index, outcome, error)`. After a crash, a new process continues."""
    indices = list(indices)
    while indices:
        process, receiver = fuzzing.forked(work, kind, read, samples, seed, indices[:CHUNK])
        done = 0
        try:
            while done < min(CHUNK, len(indices)):
                yield receiver.recv()
                done += 1
        except EOFError:
            process.join()
            outcome = "hang" if process.exitcode == -signal.SIGALRM else "crash"
            yield indices[done], outcome, f"exit status {process.exitcode}"
            done += 1
        process.join()
        indices = indices[done:]


def row(kind, count, seconds):
    """Returns a row of a Markdown table of outcomes by reader."""
    cells = [count[kind, outcome] for outcome in OUTCOMES]
    return f"| {kind} | {' | '.join(map(str, cells))} | {seconds:.0f} |"


def main():
    parser = fuzzing.parser(__doc__, "cases of all readers together")
    parser.add_argument("--only", choices=READERS, help="run one reader")
    given = parser.parse_args()
    kinds = [given.only] if given.only else list(READERS)
    rare = {kind: max(1, int(RARE[kind] * given.count)) for kind in kinds if kind in RARE}
    often = max(1, (given.count - sum(rare.values())) // max(1, len(kinds) - len(rare)))
    count, seconds, wrong = collections.Counter(), {}, []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            keras.utils.set_random_seed(given.seed)
            read = READERS[kind](folder)
            samples = {path.name: path.read_bytes() for path in folder.iterdir()}
        start = time.time()
        cases = range(given.count if given.only else rare.get(kind, often))
        for index, outcome, told in run(kind, read, samples, given.seed, cases):
            count[kind, outcome] += 1
            if outcome in WRONG:
                wrong.append({"reader": kind, "index": index, "outcome": outcome, "told": told})
                print(json.dumps(wrong[-1]), flush=True)
        seconds[kind] = time.time() - start
        print(row(kind, count, seconds[kind]), flush=True)
    print(f"| reader | {' | '.join(OUTCOMES)} | seconds |")
    print("| --- " * (len(OUTCOMES) + 2) + "|")
    print(*(row(kind, count, spent) for kind, spent in seconds.items()), sep="\n")
    rows = {kind: {outcome: count[kind, outcome] for outcome in OUTCOMES} for kind in kinds}
    fuzzing.write(given.out, count=given.count, seed=given.seed, rows=rows, wrong=wrong)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
