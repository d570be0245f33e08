"""mT5 in Hugging Face's layout: T5 1.1 in 101 languages.

It differs from `t5` in its defaults, and never scales the vectors before the logits. A folder holds
the files of `t5`.
"""

import dataclasses
import functools

from keras_transformer.importers import t5
from keras_transformer.importers.tables import Loader, ModelLoader, Origin, RowOrders

__all__ = ["load", "load_model", "row_orders"]

CONFIG = dataclasses.replace(
    t5.CONFIG,
    model_type="mt5",
    defaults={
        **t5.CONFIG.defaults,
        "feed_forward_proj": "gated-gelu",
        "num_heads": 6,
        "scale_decoder_outputs": False,
    },
    fixed={**t5.CONFIG.fixed, "scale_decoder_outputs": False},
)

ORIGIN = Origin("mt5", functools.partial(t5.read_files, CONFIG), t5.make_table, t5.vocabulary)
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
row_orders: RowOrders = ORIGIN.row_orders
