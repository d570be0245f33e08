"""Runs the Python and bash blocks of a page in order, in one process."""

import os
import pathlib
import re
import subprocess
import sys

import num2words
from helpers import processes

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")


def number_words(folder):
    """Writes parallel files {train,valid}.{en,de}, and lines to translate, in.txt."""
    for language in ("en", "de"):
        lines = [num2words.num2words(number, lang=language) for number in range(100, 900, 7)]
        for part in ("train", "valid"):
            (folder / f"{part}.{language}").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "in.txt").write_text("one hundred\n\ntwo\n", "utf-8")


def script(page, smaller):
    """Returns a Python script of all blocks of a page.

    A block that begins with a file name as a comment becomes that file. Bash runs `bash` blocks.
    `console` blocks are skipped.

    Args:
        page: text of the page.
        smaller: dict from texts of the page to replacements that run in seconds. Each must occur.
    """
    for old, new in smaller.items():
        assert old in page, f"{old} is not on the page"
        page = page.replace(old, new)
    parts = ["import pathlib, subprocess\n"]
    for language, code in BLOCK.findall(page):
        if language == "bash":
            parts.append(
                f"subprocess.run(['bash', '-euo', 'pipefail', '-c', {code!r}], check=True)\n"
            )
        elif file := FILE.match(code):
            parts.append(f"pathlib.Path({file[1]!r}).write_text({code!r}, 'utf-8')\n")
        else:
            parts.append(code)
    return "".join(parts)


def run(code, folder, blocked=()):
    """Runs a script in a folder and returns its output. Importing `blocked` packages fails."""
    block = "".join(f"import sys; sys.modules[{name!r}] = None\n" for name in blocked)
    (folder / "guide.py").write_text(block + code, "utf-8")
    programs = pathlib.Path(sys.executable).parent  # with this process' `python`
    options = {
        "cwd": folder,
        "env": {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
    }
    if blocked:
        command = [sys.executable, "guide.py"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, **options)
    else:
        done = processes.run(folder / "guide.py", **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
