"""The page in Chromium: Python's results, keyboard control, two screen sizes, no network."""

import functools
import http.server
import threading

import numpy as np
import pytest
from helpers import exports, node, web

from keras_transformer.export import export_attention
from keras_transformer.export.runtime import Translator

pytestmark = pytest.mark.full

LINES = web.sentences(500)
PARAGRAPH = f"two dogs?  a man rides\n\n{LINES[1]}"  # three sentences


@pytest.fixture(scope="module")
def visit(node_folder, tmp_path_factory):
    """Results of `tests/node/page.js`."""
    chromium, folder = node.chromium(), tmp_path_factory.mktemp("page")
    (folder / "site").mkdir()
    export_attention(exports.shared_model(), folder / "attention", verbose=False)
    site = str(web.site(folder / "site", node_folder, exports.artefact(), folder / "attention"))
    # A server without the headers that threads need.
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        request = {
            "site": site,
            "plain": f"http://127.0.0.1:{server.server_port}/",
            "chromium": chromium,
            "arguments": node.CHROMIUM_ARGUMENTS,
            "profile": str(folder / "profile"),
            "shots": str(folder),
            "lines": LINES,
            "sentence": LINES[1],
            "paragraph": PARAGRAPH,
            "again": 20,
        }
        found = node.run(node_folder, "page.js", request, timeout=300)
        server.shutdown()
    return found


def test_sentences_are_translated_as_in_python(visit):
    model = exports.shared_model("translate")
    web.assert_as_in_python(visit["results"], exports.artefact(), LINES, model)
    assert visit["isolated"] and visit["errors_online"] == []


def test_typed_text_is_translated(visit):
    assert visit["typed"] == visit["results"][1]["texts"][0]
    read, written = len(visit["results"][1]["sourceIds"]), len(visit["results"][1]["ids"][0])
    assert f"{read} tokens read, {written} written" in visit["figures"]
    assert "where this artefact takes at most 512; split or shorten" in visit["refused"]
    assert visit["others"] == exports.BEAM.beam_width


def test_each_sentence_of_a_paragraph_is_translated(visit):
    translator = Translator(exports.artefact(), threads=1)
    texts = translator.translate(["two dogs?", "a man rides", LINES[1]])
    assert visit["paragraph"] == "{}  {}\n\n{}".format(*texts)


def test_attention_is_a_table_of_pieces(visit):
    columns = visit["columns"]
    assert columns[-1] == "</s>" and columns[0] == LINES[1].split()[0][: len(columns[0])]
    weights = np.reshape(visit["weights"], (visit["rows"], len(columns)))
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=0.005 * len(columns))  # rounded


def test_it_works_without_a_network_after_the_first_load(visit):
    assert visit["offline_status"].startswith("Ready")
    assert visit["offline_typed"] == visit["typed"]
    web.assert_same(visit["offline"], visit["results"][:20])


def test_it_works_on_one_thread_if_the_page_is_not_isolated(visit):
    assert visit["plain_typed"] == visit["typed"] and "1 thread" in visit["plain_figures"]


def test_it_fits_a_phone_and_a_desktop(visit):
    assert visit["widths"] == {"desktop": 1200, "phone": 360}


def test_keyboard_and_screen_reader_find_everything(visit):
    controls = [(control["id"], control["outline"]) for control in visit["controls"][:2]]
    assert controls == [("model", "solid"), ("source", "solid")]
    parts = (
        'heading "Translate" [level=1]',
        'combobox "Model"',
        'textbox "Text"',
        'heading "Translation" [level=2]',
        'status "Translation"',
        'button "Copy"',
        "Other translations",
    )
    assert [part for part in parts if part not in visit["tree"]] == [], visit["tree"]
