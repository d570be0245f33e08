"""Applies the mutations of `mutations.txt` to a copy of this tree, and runs tests there.

    python tests/mutations.py             # all of them
    python tests/mutations.py 27 128      # these
    python tests/mutations.py --quick     # with the quick tests of each room alone

A mutation is a small fault in a guard or a formula. A good suite catches it: at least one test of
the room, the files that `tests:` names, fails. A mutation that changes no result says so in
`equivalent:`, and must survive. The checkout itself is never changed.
"""

import argparse
import contextlib
import dataclasses
import difflib
import importlib
import multiprocessing
import os
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LIST = ROOT / "tests" / "mutations.txt"
SECONDS = 900  # for the tests of one mutation
COPIED = ("keras_transformer", "export", "tests", "examples", "pyproject.toml")
# Imported once, because that takes longer than most tests. Each mutation has a forked process.
IMPORTED = ("tensorflow", "keras", "tf2onnx", "onnxscript", "onnxruntime", "sentencepiece")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "node_modules", ".*_cache")


@dataclasses.dataclass
class Mutation:
    """An entry of the list.

    Attributes:
        number: int.
        file: path of the mutated file, from the root.
        tests: arguments of pytest that run the tests of the room.
        equivalent: why it changes no result; empty if it does.
        old, new: whole lines of the file, before and after.
    """

    number: int
    file: str
    tests: str = ""
    equivalent: str = ""
    old: str = ""
    new: str = ""

    def applied(self, text: str) -> str:
        """Returns the changed text of the file; raises `ValueError` unless the diff fits once."""
        if (found := f"\n{text}".count(f"\n{self.old}")) != 1:
            near = difflib.get_close_matches(self.old.split("\n")[0], text.split("\n"), 1, 0.0)
            raise ValueError(
                f"Mutation {self.number}: {self.file} has its old lines {found} times, not once. "
                f"The nearest line is {near}. Correct the diff in {LIST.name}."
            )
        return f"\n{text}".replace(f"\n{self.old}", f"\n{self.new}")[1:]


def read() -> list[Mutation]:
    """Returns the mutations of the list, whose first lines describe its format."""
    found: list[Mutation] = []
    for line in LIST.read_text("utf-8").splitlines():
        if head := re.fullmatch(r"(\d+) (\S+\.py)", line):
            found.append(Mutation(int(head[1]), head[2]))
        elif field := re.fullmatch(r"(tests|equivalent): (.+)", line):
            setattr(found[-1], field[1], field[2])
        elif line[:1] in ("-", "+", " ") and line:
            found[-1].old += f"{line[1:]}\n" * (line[0] != "+")
            found[-1].new += f"{line[1:]}\n" * (line[0] != "-")
        elif line and not line.startswith("#"):
            raise ValueError(f"{LIST.name} has the line {line!r}.")
    return found


def run(mutation: Mutation, root: pathlib.Path, *options: str) -> tuple[bool, str]:
    """Runs the room's tests with a mutation; returns whether one failed, and which or why."""
    path = root / mutation.file
    before = path.read_text("utf-8")
    path.write_text(mutation.applied(before), "utf-8")
    try:
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            arguments = (root, [*options, *shlex.split(mutation.tests)], output.fileno())
            child = multiprocessing.get_context("fork").Process(target=_run_tests, args=arguments)
            child.start()
            child.join(SECONDS)
            if child.exitcode is None:
                child.kill()
                child.join()
                return False, f"no end within {SECONDS} s proves nothing"
            output.seek(0)
            text = output.read()
    finally:
        path.write_text(before, "utf-8")
    if child.exitcode == pytest.ExitCode.NO_TESTS_COLLECTED and options:
        return False, "the room has no quick test"
    if child.exitcode not in (0, 1):  # such as an unknown file, no test or a crash
        raise RuntimeError(f"Mutation {mutation.number}: {text[-2000:]}")
    failed = re.findall(r"^(?:FAILED|ERROR) (.*)", text, re.MULTILINE)
    return bool(child.exitcode), failed[0] if failed else text.rstrip().split("\n")[-1]


def _run_tests(root: pathlib.Path, arguments: list[str], output: int) -> None:
    """Runs pytest in a child process that has imported the packages beside this one."""
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.chdir(root)
    sys.path[0] = os.environ["PYTHONPATH"] = str(root)
    options = ["-n0", "-x", "-q", "-p", "no:cacheprovider"]
    sys.exit(int(pytest.main([*options, *arguments])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("numbers", nargs="*", type=int, help="of mutations; all without any")
    parser.add_argument("--quick", action="store_true", help="run the quick tests alone")
    arguments = parser.parse_args()
    wanted = arguments.numbers
    listed = read()
    if unknown := {*wanted} - {mutation.number for mutation in listed}:
        parser.error(f"{LIST.name} has no mutation {sorted(unknown)}.")
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.dont_write_bytecode = True  # a change within a second of another one would go unnoticed
    wrong, ran = [], 0
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in COPIED:
            copy = shutil.copy if (ROOT / name).is_file() else shutil.copytree
            options = {} if copy is shutil.copy else {"ignore": LEFT_OUT}
            copy(ROOT / name, root / name, **options)
        for mutation in listed:
            if wanted and mutation.number not in wanted:
                continue
            start = time.monotonic()
            caught, reason = run(mutation, root, *["--quick"] * arguments.quick)
            verdict = "caught" if caught else "survived"
            if mutation.equivalent:
                verdict += f" (equivalent: {mutation.equivalent})"
            seconds = time.monotonic() - start
            print(f"{mutation.number:3} {verdict} in {seconds:.0f} s: {reason}", flush=True)
            ran += 1
            if caught == bool(mutation.equivalent):
                wrong.append(mutation.number)
    print(f"{ran} mutations, {ran - len(wrong)} as expected; not as expected: {wrong or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
