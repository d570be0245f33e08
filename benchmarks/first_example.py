"""Runs the README's first example with several seeds, each in a new process.

    python benchmarks/first_example.py --seeds 5 --output benchmarks/results/first_example.json
    python benchmarks/first_example.py --model examples/model

For each seed the report has the printed line, the share of the numbers outside the training data
that are translated correctly, and the margin of the printed line: its score minus the score of the
second hypothesis. The README gives the mean share. `--model` trains on all numbers below 10,000
instead, and writes the small model of the repository with int8 weights.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import bench

README = bench.ROOT / "README.md"
NUMBERS, EPOCHS = "range(0, 10_000, 3)", "epochs=10"
SEED, EXPORT = "set_random_seed(1)", "kt.BeamSearch(4))"
MEASURE = """
import json
numbers = [n for n in range(10_000) if n % 3]  # none of them is in the training data
translator = Translator("en-de")
translations = translator.translate([num2words(n) for n in numbers])
right = sum(num2words(n, lang="de") == text for n, text in zip(numbers, translations, strict=True))
(best,) = translator.n_best(["seven thousand and twenty-one"])
margin = best.scores[0] - best.scores[1]
print(json.dumps({"right": right / len(numbers), "text": best.texts[0], "margin": float(margin)}))
"""


def example():
    """Returns the code of the README's first example and the line that it promises to print."""
    block = re.search(r"```python\n(.*?)\n# (.*?)\n```", README.read_text("utf-8"), re.DOTALL)
    return block[1], block[2]


def run(code, **replacements):
    """Runs code in a new folder, with some texts replaced, and returns its output."""
    for old, new in replacements.items():
        assert old in code, f"{old} is not in the README's example"
        code = code.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return done.stdout.splitlines()


def measure(seed):
    """Returns the figures of one seed."""
    code, promised = example()
    replaced = {SEED: f"set_random_seed({seed})"}
    seconds, (*_, printed, figures) = bench.timed(lambda: run(code + MEASURE, **replaced))
    found = {"seed": seed, "seconds": round(seconds), **json.loads(figures)}
    return found | {"as promised": printed == promised}


def write_model(path):
    """Trains the example's model on all numbers, and exports it with int8 weights."""
    code, _ = example()
    quantized = f'{EXPORT[:-1]}, precision="int8")'
    changes = {'"en-de"': repr(str(path)), NUMBERS: "range(10_000)"}
    changes |= {EPOCHS: "epochs=5", EXPORT: quantized}
    print(*run(code, **changes), sep="\n")


def main():
    parser = bench.Parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--model", type=Path, help="folder for the small model; no figures")
    args = parser.parse_args()
    if args.model:
        write_model(args.model.resolve())
        return
    code, promised = example()
    report = {"code": [*code.splitlines(), f"# {promised}"], "rows": []}
    for seed in range(1, args.seeds + 1):
        report["rows"].append(measure(seed))
        bench.keep(args, report)
    bench.finish(args, "first-example", report)


if __name__ == "__main__":
    main()
