"""The npm package: download size, time to the first translation, time per translation.

    python benchmarks/browser.py --data DATA --output benchmarks/results/web.json

The translator has the README's shape (Multi30k, 5,000 pieces, beam 5) and random weights. Each
translation is forced to 20 tokens, so neither size nor time depends on the weights. Node.js and
Chromium run its exports with ONNX Runtime's WebAssembly build. In Node.js, the exports take turns.

Requires Node.js, Chromium, and `npm ci --ignore-scripts` and `npm run vendor` in `export/web`.
"""

import gzip
import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench
import subjects

PACKAGE = bench.ROOT / "export" / "web"
DRIVER = Path(__file__).with_name("browser.js")
PRECISIONS = ("float32", "float16", "int8", "weight_int8", "weight_int4")
NAMES = [f"beam5/{precision}" for precision in PRECISIONS] + ["greedy/float32", "greedy/int8"]
VISITED = ("beam5/float32", "beam5/int8")
VISITS = 3
TOKENS = 20
# Files that a first visit loads beside the model.
PAGE = ("index.html", "page", "src", "vendor/ort-wasm-simd-threaded.mjs", "vendor/ort.wasm.min.mjs")
PAGE += ("vendor/runtime.js", "vendor/sentencepiece.mjs", "vendor/ort-wasm-simd-threaded.wasm")


def export_all(data, folder):
    """Exports the translators that `folder` lacks; returns sentences of 13 pieces."""
    import keras

    import keras_transformer as kt
    from keras_transformer import export

    english, german = (subjects.captions(data, "train", language) for language in ("en", "de"))
    size = subjects.SHAPES["tiny"]["vocab_size"]
    tokenizer = kt.Tokenizer.train([*english, *german], vocab_size=size)
    keras.utils.set_random_seed(1)
    model = kt.Transformer(**subjects.SHAPES["tiny"])
    searches = {
        "beam5": kt.BeamSearch(beam_width=5, length_penalty=1.4, min_length=TOKENS),
        "greedy": kt.GreedySearch(min_length=TOKENS),
    }
    for name in NAMES:
        search, precision = name.split("/")
        if not (folder / name).exists():
            export.export_onnx(
                model,
                folder / name,
                tokenizer,
                searches[search],
                precision,
                max_length=TOKENS,
                tolerance=None if precision == "float32" else 100.0,  # random weights
                verbose=False,
            )
    sources = [line for line in english if len(tokenizer.encode(line)) == 13]
    return random.Random(0).sample(sources, 32)


def files_of(folder, names):
    paths = [folder / name for name in names]
    return [file for path in paths for file in ([path] if path.is_file() else path.iterdir())]


def sizes(files):
    """Returns the bytes of files, raw and compressed one by one, as a server does."""
    data = [file.read_bytes() for file in files]
    return {
        "bytes": sum(map(len, data)),
        "gzip": sum(len(gzip.compress(part)) for part in data),
        "brotli": driven("brotli", *map(str, files)),
    }


def driven(command, *files, request=None):
    """Runs a command of `browser.js`; returns its figures."""
    done = subprocess.run(
        ["node", str(DRIVER), command, *files],
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=PACKAGE,
    )
    return json.loads(done.stdout)


def measure(args, folder):
    lines = export_all(args.data, folder)
    request = {"package": str(PACKAGE), "folder": str(folder), "names": NAMES, "lines": lines}
    request |= {"rounds": args.rounds, "visits": VISITS, "chromium": args.chromium}
    node = driven("node", request=request)
    for name in ("index.html", "page", "service_worker.js", "src", "vendor"):
        if not (folder / name).exists():
            os.symlink(PACKAGE / name, folder / name)
    rows = []
    for name in NAMES:
        models = [{"name": name, "url": name, "source": "en", "target": "de"}]
        (folder / "models.json").write_text(json.dumps({"models": models}))
        page = driven("page", request=request) if name in VISITED else {}
        rows.append({"name": name, **sizes(files_of(folder, [name])), **node[name], **page})
    return {"page": sizes(files_of(PACKAGE, PAGE)), "load": os.getloadavg(), "rows": rows}


def main():
    parser = bench.Parser(__doc__, "data", "rounds", rounds=9)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--work", type=Path, help="folder that keeps the exports for another run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(args, (args.work or Path(folder)).resolve())
    packages = json.loads((PACKAGE / "package.json").read_text())["devDependencies"]
    report["versions"] = bench.head(args)["versions"]
    report["versions"]["onnxruntime-web"] = packages["onnxruntime-web"]
    version = subprocess.run([args.chromium, "--version"], capture_output=True, text=True)
    bench.finish(args, "web", report | {"chromium": version.stdout.strip()})


if __name__ == "__main__":
    main()
