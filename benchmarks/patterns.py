"""Patterns: how many outputs of an untrained model are valid, and what a pattern costs.

    python benchmarks/patterns.py --work FOLDER --output benchmarks/results/patterns.json
    python benchmarks/patterns.py ... --costs    # the costs alone; folders of an earlier run stay

- Valid: five JSON schemas, three regular expressions and two lists of choices; greedy search, beam
  search and sampling, in Keras, ONNX Runtime and LiteRT. `jsonschema` and `re` judge.
- Cost: milliseconds for each token and megabytes of the file, with and without a pattern, for
  vocabularies of three sizes with made-up pieces.
"""

import json
import random
import re
import time

import bench
import jsonschema
import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.export import export_litert, export_onnx
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime.sessions import open_session

CITIES = {"enum": ["Ulm", "Lima", "New York"]}
SCHEMAS = {
    "person": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    },
    "flight": {
        "type": "object",
        "properties": {"from": CITIES, "to": CITIES, "price": {"type": "number"}},
        "required": ["from", "to"],
    },
    "nested": {
        "type": "object",
        "properties": {
            "order": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "open": {"type": "boolean"}},
                "required": ["id", "open"],
            },
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["order", "note"],
    },
    "list": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 4},
    "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 2},
}
PATTERNS = {
    **{name: {"json_schema": schema} for name, schema in SCHEMAS.items()},
    "date": {"regex": "[12][0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9]"},
    "sentence": {"regex": "[A-Z][a-z]+( [a-z]+)*[.!?]"},
    "address": {"regex": "[a-z]+@[a-z]+(\\.[a-z]+)+"},
    "answer": {"choices": ["yes", "no", "do not know"]},
    "colours": {"choices": ["red", "green", "dark green", "dark blue", "blue", "black"]},
}
SEARCHES = {
    "greedy": kt.GreedySearch,
    "beam 4": lambda **given: kt.BeamSearch(4, **given),
    "sampling": kt.Sampling,
}
ENGINES = {"ONNX Runtime": export_onnx, "LiteRT": export_litert}
SIZES = (300, 8_000, 32_000)
ROWS, LONGEST = 1000, 40


class Pieces:
    """A tokenizer of made-up pieces: all bytes, and random words of up to nine letters."""

    def __init__(self, vocab_size):
        draw = random.Random(vocab_size)
        words = {}
        while len(words) < vocab_size - 260:
            word = "".join(draw.choices("etaoinsrhldcumfpgwybvk", k=draw.randint(2, 8)))
            words[(" " * draw.randint(0, 1) + word).encode()] = None
        self.piece_bytes = [b""] * 4 + [bytes([byte]) for byte in range(256)] + [*words]
        self.vocab_size = vocab_size

    def encode(self, text):
        return [4 + byte for byte in text.encode()]

    def decode(self, ids):
        if ids and isinstance(ids[0], list):
            return [self.decode(row) for row in ids]
        return b"".join(self.piece_bytes[id] for id in ids).decode(errors="replace")


def is_valid(text, given, pattern):
    """Returns whether a text follows its pattern."""
    if "json_schema" not in given:
        return re.fullmatch(pattern.regex, text) is not None
    try:
        jsonschema.validate(json.loads(text), given["json_schema"])
    except (json.JSONDecodeError, jsonschema.ValidationError):
        return False
    return True


def outputs_of(engine, model, search, source, max_length, folder):
    """Returns the ids of the best output of each source, (B, T)."""
    if engine == "Keras":
        seed = {"seed": 1} if isinstance(search, kt.Sampling) else {}
        return search(model, source, max_length=max_length, **seed).ids.numpy()[:, 0]
    ENGINES[engine](model, folder, search=search, max_length=max_length, verbose=False)
    session = open_session(read_artefact(folder))
    inputs = {"source_ids": source}
    if isinstance(search, kt.Sampling):
        inputs["seed"] = np.array(1, "int32")
    return session.run(["token_ids"], inputs)[0][:, 0]


def validity(work):
    """Yields a row for each pattern and search: the valid outputs of each engine."""
    keras.utils.set_random_seed(1)
    tokenizer = Pieces(400)
    model = kt.Transformer(400, num_layers=2, d_model=64, num_heads=4, d_ff=128)
    source = np.random.default_rng(1).integers(4, 400, (ROWS, 9)).astype("int32")
    for name, given in PATTERNS.items():
        pattern = kt.Pattern(**given, tokenizer=tokenizer)
        limit = max(LONGEST, pattern.least_length)
        for kind, make in SEARCHES.items():
            search = make(constraints=[pattern])
            row = {"pattern": name, "search": kind, "least": pattern.least_length}
            for engine in ("Keras", *ENGINES):
                folder = work / f"{name}-{kind}-{engine}".replace(" ", "-")
                ids = outputs_of(engine, model, search, source, limit, folder)
                texts = [tokenizer.decode(row[row > 3].tolist()) for row in ids]
                row[engine] = sum(is_valid(text, given, pattern) for text in texts)
                row[f"{engine}, different"] = len(set(texts))
            print(row, flush=True)
            yield row


def costs(work, rounds):
    """Yields a row for each vocabulary: times and sizes with and without a pattern."""
    for vocab_size in SIZES:
        keras.utils.set_random_seed(1)
        tokenizer = Pieces(vocab_size)
        seconds, pattern = bench.timed(
            lambda t=tokenizer: kt.Pattern(json_schema=SCHEMAS["nested"], tokenizer=t)
        )
        row = {"vocabulary": vocab_size, "compile_ms": 1000 * seconds}
        row["states"], row["classes"] = pattern.automaton.after.shape
        # All outputs have the same number of tokens.
        pattern = kt.Pattern(regex="[a-z ]{240}", tokenizer=tokenizer)
        length = pattern.least_length
        model = kt.Transformer(vocab_size, num_layers=4, d_model=256, num_heads=4, d_ff=1024)
        source = np.random.default_rng(1).integers(4, vocab_size, (32, 19)).astype("int32")
        runs = {}
        for name, constraints in {"free": [], "pattern": [pattern]}.items():
            minimum = 0 if constraints else length
            search = kt.BeamSearch(4, constraints=constraints, min_length=minimum)
            folder = work / f"{vocab_size}-{name}"
            if not folder.exists():
                export_onnx(model, folder, search=search, max_length=length, verbose=False)
            row[f"{name}_mb"] = bench.size(folder) / 1e6
            session = open_session(read_artefact(folder))

            def run(rows, session=session, source=source, length=length):
                began = time.perf_counter()
                ids = session.run(["token_ids"], {"source_ids": source[:rows]})[0]
                assert ids.shape[2] == length
                return {"ms": 1000 * (time.perf_counter() - began) / length}

            runs[name] = run
        row["length"] = length
        for rows, column in ((1, "alone"), (32, "batch")):
            answers = bench.in_turn(runs, rounds, rows=rows)
            for name, found in answers.items():
                row[f"{name}_{column}_ms"] = bench.medians(found)["ms"]
        print(row, flush=True)
        yield row


def main():
    parser = bench.Parser(__doc__, "work", "rounds", rounds=7)
    parser.add_argument("--costs", action="store_true", help="keep the valid outputs in --output")
    args = parser.parse_args()
    report = {"rounds": args.rounds, "outputs": ROWS}
    kept = args.costs and json.loads(args.output.read_text("utf-8"))["valid"]
    report["valid"] = kept or list(validity(args.work))
    report["costs"] = list(costs(args.work, args.rounds))
    bench.finish(args, "patterns", report)


if __name__ == "__main__":
    main()
