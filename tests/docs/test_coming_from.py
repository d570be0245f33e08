"""The code of `docs/coming_from.md` prints the outputs that the page shows."""

import pathlib
import re

import pytest
from helpers import guides

pytestmark = [pytest.mark.slow, pytest.mark.full]
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "coming_from.md"


def test_the_script_prints_the_outputs_of_the_page(tmp_path):
    page = PAGE.read_text("utf-8")
    outputs = re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert outputs
    assert guides.run(guides.script(page, {}), tmp_path) == "".join(outputs)
