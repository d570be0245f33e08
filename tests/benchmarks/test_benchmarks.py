"""The benchmarks' pages: their tables are those of the committed figures."""

import subprocess
import sys
from pathlib import Path


def test_the_tables_of_the_pages_are_those_of_the_committed_figures():
    # A process of its own: a module of the tests bears the name of a benchmark.
    script = Path(__file__).parents[2] / "benchmarks" / "tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
