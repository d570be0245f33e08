"""The Transformer of "Attention Is All You Need" as Keras layers, models, losses and searches.

Each folder is one subject, and its `__init__.py` describes it. The folder `export/` beside this one
is imported as `keras_transformer.export`, installed or not. A module imports only modules of
the same floor or below; `python tests/package/test_structure.py` prints the floors. To add a new
public name, import it below and list it in `__all__`.

All public names are imported here, so that `keras.models.load_model` finds every class. The package
stays importable without Keras or its backend, because `keras_transformer.export.runtime` serves
exported models without them. Using a name whose package is missing raises an error that names the
extra to install.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_transformer.startup import SERVES, install, serve_without_frameworks
from keras_transformer.text.corpora import read_lines
from keras_transformer.text.glossary import Glossary

__version__ = "0.1.0"

__all__ = [
    "AdditiveAttention",
    "AlignmentCrossentropy",
    "BatchOptions",
    "Batches",
    "BeamSearch",
    "BiasedPrefix",
    "BleuCallback",
    "CausalTransformer",
    "CheckpointAveraging",
    "ClassToken",
    "Constraint",
    "DecoderBlock",
    "Distillation",
    "EncoderBlock",
    "Ensemble",
    "FeedForward",
    "ForbiddenWords",
    "Glossary",
    "GatedFeedForward",
    "GreedySearch",
    "GridPositionEncoding",
    "InverseSquareRootWarmup",
    "LearnedPositionEncoding",
    "LogMel",
    "MaskedConv1D",
    "Model",
    "MultiHeadAttention",
    "NoRepeatNgrams",
    "PairCrossentropy",
    "PatchEmbedding",
    "Pattern",
    "Perplexity",
    "PositionEncoding",
    "RDrop",
    "RecurrentDecoderBlock",
    "RelativePositionBias",
    "RepetitionPenalty",
    "RotaryPositionEncoding",
    "Run",
    "SSRU",
    "Sampling",
    "SearchResult",
    "SegmentEmbedding",
    "SequenceCrossentropy",
    "SequencePooling",
    "Shortlist",
    "Shortlisted",
    "SinusoidalPositionEncoding",
    "SpeechSearch",
    "StopOnNonFinite",
    "Terms",
    "Throughput",
    "TimestampRules",
    "TokenAccuracy",
    "TokenEmbedding",
    "Tokenizer",
    "Transformer",
    "TransformerEncoder",
    "answer_batches",
    "average_checkpoints",
    "causal_mask",
    "classification_batches",
    "combine_masks",
    "distil",
    "feature_batches",
    "generate",
    "image_batches",
    "importers",
    "language_model_batches",
    "layout_map",
    "padding_mask",
    "pair_batches",
    "quantization_aware",
    "read_lines",
    "recompute",
    "scaled_dot_product_attention",
    "speech_batches",
    "tagging_batches",
    "training",
    "translate",
    "translation_batches",
    "with_alignments",
]

# Packages that may be missing. If any other package is missing, the installation is broken and the
# error is raised.
_OTHER_BACKENDS = {"jax", "torch"}  # all others come with the extra `train`
_OPTIONAL = _OTHER_BACKENDS | {"keras", "sentencepiece", "tensorflow", "tensorflow_text"}
_missing: list[str] = []


@contextmanager
def _where_installed() -> Iterator[None]:
    """Imports a group of modules; records the optional package that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _OPTIONAL:
            raise
        _missing.append(package)


_serves = serve_without_frameworks()

# The wheel holds `export/` inside this folder, a clone beside it. In the root of a clone, Python
# imports this folder instead of the installed package, so `export/` must be found here, too.
_folder = Path(__file__).resolve().parent
if not (_folder / "export").is_dir():
    __path__.append(str(_folder.parent))

# One group per requirement, so that a missing package disables only its group.

with _where_installed():  # sentencepiece
    from keras_transformer.text.tokenizer import Tokenizer

with _where_installed():  # Keras, on any of its backends
    from keras_transformer import importers, training
    from keras_transformer.ensemble import Ensemble
    from keras_transformer.layers.additive import AdditiveAttention
    from keras_transformer.layers.attention import MultiHeadAttention, scaled_dot_product_attention
    from keras_transformer.layers.blocks import (
        DecoderBlock,
        EncoderBlock,
        FeedForward,
        GatedFeedForward,
    )
    from keras_transformer.layers.embeddings import SegmentEmbedding, TokenEmbedding
    from keras_transformer.layers.masks import causal_mask, combine_masks, padding_mask
    from keras_transformer.layers.pooling import ClassToken, SequencePooling
    from keras_transformer.layers.positions import (
        GridPositionEncoding,
        LearnedPositionEncoding,
        PositionEncoding,
        RelativePositionBias,
        RotaryPositionEncoding,
        SinusoidalPositionEncoding,
    )
    from keras_transformer.layers.signals import LogMel, MaskedConv1D, PatchEmbedding
    from keras_transformer.layers.ssru import SSRU, RecurrentDecoderBlock
    from keras_transformer.models import CausalTransformer, Transformer, TransformerEncoder
    from keras_transformer.training.alignment import AlignmentCrossentropy, with_alignments
    from keras_transformer.training.callbacks import BleuCallback, StopOnNonFinite, Throughput
    from keras_transformer.training.checkpoints import CheckpointAveraging, average_checkpoints
    from keras_transformer.training.distribution import Model
    from keras_transformer.training.losses import PairCrossentropy, SequenceCrossentropy
    from keras_transformer.training.metrics import Perplexity, TokenAccuracy
    from keras_transformer.training.model_losses import Distillation, RDrop
    from keras_transformer.training.quantization import quantization_aware
    from keras_transformer.training.recomputation import recompute
    from keras_transformer.training.resume import Run
    from keras_transformer.training.schedules import InverseSquareRootWarmup
    from keras_transformer.training.sharding import layout_map
    from keras_transformer.translation import distil, generate, translate

with _where_installed():  # Keras and sentencepiece
    from keras_transformer.data.batches import Batches
    from keras_transformer.data.features import feature_batches, image_batches
    from keras_transformer.data.labelled import classification_batches, tagging_batches
    from keras_transformer.data.language_model import language_model_batches
    from keras_transformer.data.pairs import answer_batches, pair_batches
    from keras_transformer.data.plan import BatchOptions
    from keras_transformer.data.speech import speech_batches
    from keras_transformer.data.translation import translation_batches

with _where_installed():  # TensorFlow
    from keras_transformer.search import (
        BeamSearch,
        BiasedPrefix,
        Constraint,
        ForbiddenWords,
        GreedySearch,
        NoRepeatNgrams,
        Pattern,
        RepetitionPenalty,
        Sampling,
        SearchResult,
        Shortlist,
        Shortlisted,
        Terms,
    )
    from keras_transformer.search.speech import SpeechSearch
    from keras_transformer.search.timestamps import TimestampRules


def __getattr__(name: str) -> object:
    if name in __all__ and _missing:
        package = _missing[0]
        cure = f"Install it with: {install('train')}"
        if _serves:
            raise ImportError(
                f"keras_transformer.{name} needs {package}, which this process does not import, "
                f"because it serves models. Unset {SERVES}, or use another process.",
                name=package,
            )
        if package in _OTHER_BACKENDS:
            cure = (
                f"KERAS_BACKEND or ~/.keras/keras.json selects it: pip install {package}, or set "
                "KERAS_BACKEND=tensorflow."
            )
        raise ImportError(
            f"keras_transformer.{name} needs {package}, which is not installed here. {cure}",
            name=package,
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
