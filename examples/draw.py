"""Draws pictures from captions such as "a small boot above a large bag", with a decoder.

    python examples/draw.py               # drawn shapes: no files
    python examples/draw.py --data DIR    # Fashion-MNIST in DIR/images

A picture of 44 x 44 pixels is a text of 121 pieces, each a patch of 4 x 4 pixels. K-means finds the
pieces. The decoder continues a caption with the pieces, as DALL-E does (arXiv 2102.12092). A tenth
of all combinations of two sizes, two items and a relation occurs only in the test. A classifier
trained on real pictures, and rules for sizes and places, judge the samples.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import numpy as np
from support.pixel_models import trained_classifier
from support.plots import plot_picture_rows
from support.recipes import learning_rate
from support.sets import captioned_scenes as captioned
from support.sets.picture_pieces import Codebook
from support.sets.picture_texts import OnlyCharacters
from support.sets.pictures import fashion_mnist, made_pictures
from support.task_run import TaskRun, make_parser, parse

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Generator
from keras_transformer.special_ids import BEGIN_ID, PAD_ID

UPDATES, BATCH = 100, 32  # updates per epoch, pictures per update
WORDS = 7  # tokens of a caption: "left of" is one
PIECES = captioned.BOARD**2  # of a picture
SMALL = dict(num_layers=2, d_model=64, num_heads=4, d_ff=128), 64
LARGE = dict(num_layers=3, d_model=96, num_heads=4, d_ff=192), 256
TEMPERATURES = 1.0, 0.8, 0.6


def caption_tokenizer(labels, symbols):
    """Trains a tokenizer whose pieces are the words of captions, and the given characters."""
    words = ["a", *captioned.SIZES, *captioned.RELATIONS, *labels]
    options = dict(model_type="char", byte_fallback=False, hard_vocab_limit=False)
    symbols = [*(f" {word}" for word in words), *symbols]
    return kt.Tokenizer.train(["".join(words)], 1000, symbols=symbols, **options)


def batches(items, scenes, labels, codebook, tokenizer, seed):
    """Yields endless batches of new pictures: ids and labels, both (32, 128)."""
    random = np.random.default_rng(seed)
    while True:
        some = random.permutation(scenes)[:BATCH]
        texts = codebook.texts(items.draw(some, random))
        pairs = zip(captioned.captions(some, labels), texts, strict=True)
        ids = np.array(tokenizer.encode([caption + text for caption, text in pairs]), "int32")
        begin = np.full((len(ids), 1), BEGIN_ID, "int32")
        targets = np.where(np.arange(ids.shape[1]) < WORDS, PAD_ID, ids)  # the caption is given
        yield np.concatenate([begin, ids[:, :-1]], axis=1), targets


def train(args, run, vocab_size, sizes, data, valid):
    positions = kt.GridPositionEncoding(captioned.BOARD, start=WORDS, base=100.0)
    options = dict(dropout=0.0, norm_first=True, activation="gelu", positions=positions)
    model = kt.CausalTransformer(vocab_size, **sizes, **options)
    updates = args.epochs * UPDATES
    rate = learning_rate(peak=0.01, warmup_steps=UPDATES, anneal=True, updates=updates)
    model.compile(
        keras.optimizers.Muon(rate, adam_lr_ratio=0.2, global_clipnorm=1.0),
        loss=kt.SequenceCrossentropy(),
        jit_compile=True,  # all batches have one shape: XLA compiles once
    )
    options = dict(epochs=args.epochs, steps_per_epoch=UPDATES, best="val_loss", shuffle=False)
    run.fit(model, data, validation_data=valid, validation_steps=10, **options)
    return model


def nearest(captions, known, random):
    """Returns for each caption the number of a known one with the most equal words in place."""
    captions, known = np.asarray(captions), np.asarray(known)
    same = (captions[:, None] == known).sum(axis=-1) + random.random((len(captions), len(known)))
    return same.argmax(axis=1)


def main(argv=None):
    parser = make_parser("draw", __doc__, epochs=None)
    parser.add_argument("--samples", type=int, default=3, help="samples per caption; default: 3")
    args = parse(parser, argv)
    args.epochs = args.epochs or (24 if args.data else 6)
    sizes, pieces = LARGE if args.data else SMALL
    with TaskRun(args) as run:
        if args.data:
            sets, darkest = fashion_mnist(args.data / "images", args.limit), 0.1
        else:
            sets, darkest = made_pictures(limit=args.limit), 0.5  # above the noise
        labels = sets.labels
        items = [captioned.Items(*part, darkest) for part in sets[:3]]
        scenes = captioned.split_scenes(len(labels))
        random = np.random.default_rng(args.seed)
        sample = items[0].draw(random.choice(scenes[0], 2000), random)
        codebook = Codebook(sample, pieces, args.seed)
        np.save(run.path / "pieces.npy", codebook.patches)
        tokenizer = caption_tokenizer(labels, codebook.symbols)
        data = [
            batches(*pair, labels, codebook, tokenizer, args.seed)
            for pair in zip(items, scenes, strict=True)
        ]
        frames = [some.frames(most=30000) for some in items[:2]]
        classify = trained_classifier(*frames, levels=256, epochs=2)
        model = train(args, run, tokenizer.vocab_size, sizes, *data[:2])
        search = kt.Sampling(constraints=[OnlyCharacters(tokenizer, codebook.symbols)])
        export.export_onnx(model, run.path / "onnx", tokenizer, search, max_length=PIECES)

        # From here on, ONNX Runtime draws.
        generator = Generator(run.path / "onnx")

        def drawn(scenes, samples, temperature):
            """Draws pictures (samples, N, 44, 44)."""
            prompts = captioned.captions(scenes, labels)
            texts = [
                generator.generate(prompts, s, temperature=temperature) for s in range(samples)
            ]
            return np.stack([codebook.pictures(some) for some in texts])

        def score(pictures, scenes):
            """Computes shares of pictures (samples, N, 44, 44) that are right."""
            right = [captioned.right_parts(some, scenes, classify) for some in pictures]
            return {name: float(np.mean([one[name] for one in right])) for name in right[0]}

        tried = {t: score(drawn(scenes[1], 1, t), scenes[1])["both right"] for t in TEMPERATURES}
        best = max(tried, key=tried.get)
        samples, seen = drawn(scenes[2], args.samples, best), random.permutation(scenes[0])[:160]
        often = np.tile(scenes[2], (args.samples, 1))
        real = items[2].draw(often, random)
        close = scenes[0][nearest(often, scenes[0], random)]
        others = {
            "captions seen in training": score(drawn(seen, 1, best), seen),
            "validation": {f"both right at temperature {t}": found for t, found in tried.items()},
        }
        baseline = {
            "nearest training caption": items[0].draw(close, random),
            "any training picture": random.choice(sample, len(often)),
            "test pictures": real,
            "test pictures as pieces": codebook.pictures(codebook.texts(real)),
        }
        shown = random.permutation(len(scenes[2]))[:8]
        names = captioned.captions(scenes[2][shown], labels)
        names = [name.replace(" a ", "\na ") for name in names]
        rows = samples[:, shown].swapaxes(0, 1) / 255
        run.draw("samples.png", plot_picture_rows(rows, names))
        run.write_score(
            model,
            score(samples, scenes[2]),
            others,
            data="scenes of Fashion-MNIST" if args.data else "scenes of drawn shapes",
            baseline={
                f"{name}, both right": score(pictures[None], often)["both right"]
                for name, pictures in baseline.items()
            },
            temperature=best,
            samples=samples.shape[0] * samples.shape[1],
        )


if __name__ == "__main__":
    main()
