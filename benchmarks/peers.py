"""Our files beside CTranslate2 and faster-whisper in one run, on free cores and beside a busy one.

    python benchmarks/peers.py prepare --work WORK --whisper MODEL   # exports; no figures
    python benchmarks/peers.py measure --work WORK --whisper MODEL   # 15 minutes on two free cores

MODEL is a CTranslate2 folder of Whisper, and WORK/sounds holds recordings (*.wav). `measure` writes
`results/peers.json` (translation, `serving.py`) and `results/whisper.json` (`whisper.py speed`).
Each peer runs with both of its libraries for products. WORK/whisper_before may hold exports of
Whisper by earlier code, with the same names as in WORK/whisper.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import common

HERE = Path(__file__).parent
WIDTH = 5


def run(script, *arguments):
    """Runs a script of this folder; raises if it fails."""
    subprocess.run([sys.executable, str(HERE / script), *map(str, arguments)], check=True)


def translation(args, output, *options):
    """Runs `serving.py` with random weights: int8, beam 4, several times of waiting."""
    run(
        "serving.py",
        *("--quick", "--searches", "beam 4", "--precisions", *args.precisions),
        *("--engines", "ours", "ctranslate2", "--before", "--spins", 50, 0),
        *("--artefacts", args.work / "translation", "--output", output, *options),
    )


def prepare(args):
    """Exports all models that are missing, and runs the translators once."""
    for precision in ("int8", "float32"):
        place = args.work / "whisper" / f"{precision}-{WIDTH}"
        if not place.exists():
            command = [sys.executable, "-m", "keras_transformer.importers", "ctranslate2"]
            command += [args.whisper, place, "--export", "onnx", "--beam-width", str(WIDTH)]
            subprocess.run([*map(str, command), "--precision", precision], check=True)
    few = ("--single", 1, "--rounds", 1)
    translation(args, args.work / "smoke.json", *few)


def measure(args):
    """Measures translation, then speech."""
    translation(args, common.RESULTS / "peers.json", "--busy", 0, 1, "--rounds", args.rounds)
    run(
        "whisper.py",
        *("speed", "--model", args.whisper, "--work", args.work / "whisper"),
        *("--sounds", args.work / "sounds", "--before", args.work / "whisper_before"),
        *("--widths", WIDTH, "--busy", 0, 1, "--rounds", args.rounds),
        *("--output", common.RESULTS / "whisper.json"),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("prepare", "measure"))
    parser.add_argument("--work", type=Path, required=True, help="folder for the exports")
    parser.add_argument("--whisper", type=Path, required=True, help="CTranslate2 folder of Whisper")
    parser.add_argument("--precisions", nargs="+", default=["int8"], help="of translation")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    {"prepare": prepare, "measure": measure}[args.part](args)


if __name__ == "__main__":
    main()
