"""Fixtures of the tokenizer tests."""

import pytest
from helpers.texts import CORPUS

from keras_transformer.text.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request):
    return Tokenizer.train(CORPUS, 307, model_type=request.param)
