"""The code of every task page runs from top to bottom, on little data.

The full suite runs most tasks once: a page here, or a script in `examples/test_task_scripts.py`.
Others, whose models have the parts of these, run at night.
"""

import pathlib

import pytest
from helpers import guides, tiers

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]
# Replacements that make each page run in seconds.
SMALLER = {
    "answer": {
        "calendar_questions(10000)": "calendar_questions(20, limit=40)",
        "epochs=2": "epochs=1",
    },
    "classify": {"made_opinions()": "made_opinions(100)", "epochs=8": "epochs=1"},
    "classify_series": {"made_gestures()": "made_gestures(12)", "epochs=30": "epochs=1"},
    "detect": {"epoch=800": "epoch=2"},
    "forecast": {"14 * 24, 48": "2 * 24, 24", "made_series()": "made_series(20)"},
    "images": {"made_pictures()": "made_pictures(60)", "epochs=10": "epochs=1"},
    "language_model": {"made_trees()": "made_trees(100)", "epochs=12": "epochs=1"},
    "music": {"epoch=400": "epoch=2"},
    "parse": {"made_trees()": "made_trees(60)", "epochs=12": "epochs=1", "width=4": "width=2"},
    "similarity": {"count=8000": "limit=60", "epochs=8": "epochs=1"},
    "speech": {"3000, shortest": "8, shortest", "range(3)": "range(1)", "epochs=8": "epochs=1"},
    "summarise": {
        "(3000)": "(40, limit=40)",
        "num_layers=2": "num_layers=1",
        "epochs=12": "epochs=1",
    },
    "tag": {"made_trees()": "made_trees(60)", "epochs=10": "epochs=1"},
    "why_self_attention": {},
}


AS_SCRIPTS = ("answer", "detect", "forecast", "summarise")
AT_NIGHT = ("classify_series", "music", "parse", "tag", "why_self_attention")


@pytest.mark.parametrize("name", tiers.quick(SMALLER, nightly=(*AS_SCRIPTS, *AT_NIGHT)))
def test_the_code_of_a_task_page_runs(tmp_path, name):
    page = (ROOT / "docs" / "tasks" / f"{name}.md").read_text("utf-8")
    examples = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})\n"
    printed = guides.run(examples + guides.script(page, SMALLER[name]), tmp_path)
    assert page.count("```text\n") <= len(printed.splitlines())
