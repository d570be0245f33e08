"""What the tests of the runtime share: a tokenizer, and artefacts with it."""

import pytest
from support import artefacts, head_artefacts

from keras_transformer.export.runtime import Predictor


@pytest.fixture(scope="package")
def tokenizer():
    return artefacts.tokenizer()


@pytest.fixture(scope="package")
def folder(tokenizer, tmp_path_factory):
    """An artefact that no test changes."""
    return artefacts.write(tmp_path_factory.mktemp("artefact"), tokenizer)


@pytest.fixture(scope="package")
def served(tokenizer, tmp_path_factory):
    """`Predictor` for a model of `head_artefacts`, each made once."""
    made = {}

    def serve(name):
        if name not in made:
            read = None if name == "series" else tokenizer
            folder = head_artefacts.write(tmp_path_factory.mktemp(name), read, name)
            made[name] = Predictor(folder, threads=1)
        return made[name]

    return serve
