"""Training and search as users run them: with graph optimization and four threads."""

import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest
from helpers import tiers

TESTS = pathlib.Path(__file__).parents[1]
FEW = {
    "training/test_steps.py": "one_replica",
    "models/test_models.py": "learns_to_copy or steps_with_a_cache",
}
MANY = {
    **FEW,
    "search/test_token_scores.py": "scores_as_a_forward_pass",
    "search/test_search.py": "plain_search or beam or samples",
    "training/test_steps.py": "one_replica or train_on_batch",
    "models/test_models.py": "learns_to_copy or steps_with_a_cache or model_matches_the_reference",
}


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="optimizes its graphs")
@pytest.mark.parametrize("cases", [tiers.full(FEW), tiers.nightly(MANY)], ids=("few", "many"))
def test_training_and_search_hold_with_optimized_graphs_and_four_threads(cases):
    for file, parts in cases.items():  # a renamed test would be left out
        tests = (TESTS / file).read_text("utf-8")
        assert all(re.search(rf"def test_\w*{part}", tests) for part in parts.split(" or "))
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    command += ["-k", " or ".join(cases.values()), *(str(TESTS / name) for name in cases)]
    threads = dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "4")
    done = subprocess.run(
        command,
        env={**os.environ, **threads, "KT_TEST_OPTIMIZE": "1"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
