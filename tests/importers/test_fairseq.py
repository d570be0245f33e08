"""Damaged states of fairseq models; `test_origins` has the outputs."""

import numpy as np
import pytest
from helpers import origins

from keras_transformer.importers import fairseq


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda state: state.pop("encoder.embed_tokens.weight"), "is missing or no matrix"),
        (lambda state: state.pop("encoder.layers.1.fc2.bias"), "layers.1.fc2.bias is missing"),
        (lambda state: state.update({"encoder.x": np.zeros(2)}), "encoder.x is left over"),
        (
            lambda state: state.update({"encoder.layers.1000000000000.x": np.zeros(2)}),
            "layers.1000000000000.x is left over",
        ),
    ],
)
def test_every_weight_is_checked(change, message):
    state = origins.fairseq_state(origins.m2m100_model(), learned=False)
    change(state)
    with pytest.raises(ValueError, match=message):
        fairseq.load_model(state, 2)
