"""A translator in 8-bit integers only, for NPUs: LiteRT files of the encoder and of one step.

    python benchmarks/litert_integer.py --data DATA --model FOLDER --output \\
        benchmarks/results/litert_integer.json

FOLDER holds `model.keras` and `tokenizer.model` of a translator of Multi30k, English to German, as
`examples/translate.py` writes them: post-norm, sinusoids, no biases in attention. All shapes are
fixed, as NPUs need them. The caller looks up the embeddings and runs the loop of a greedy search.
TensorFlow's converter takes the ranges of all numbers from sentences of the validation set. Masked
places have a bias in the attention: -1e9, as in the model, or a small number, which rounding to 8
bits can hold.

Shapes: L positions of source and target, D d_model, V vocabulary.
"""

import os

import bench
import numpy as np
import subjects
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_transformer.special_ids import BEGIN_ID, END_ID

LENGTH = 48  # L
SENTENCES, STEPS = 100, 200  # that the converter reads
KINDS = {  # operators and dtype of inputs and outputs
    "float32": (None, None),
    "int8": (tf.lite.OpsSet.TFLITE_BUILTINS_INT8, tf.int8),
    "int16x8": (
        tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8,
        tf.int16,
    ),
}
CASES = (("float32", -30.0), ("int8", -30.0), ("int16x8", -30.0), ("int8", -1e9))


class Functions:
    """The encoder and the step of a model, as functions of vectors."""

    def __init__(self, model):
        self.model, self.blocks = model, model.decoder_stack.blocks
        attention, size = self.blocks[0].self_attention, model.d_model
        self.cache = (1, attention.num_heads, LENGTH, attention.key_dim)
        caches = [f"{name}_{i}" for i in range(len(self.blocks)) for name in ("key", "value")]
        vectors = {"x": (1, LENGTH, size), "bias": (1, 1, 1, LENGTH)}
        step = {"x": (1, 1, size), "bias": (1, 1, 1, LENGTH), "past_bias": (1, 1, 1, LENGTH + 1)}
        step |= {f"{part}_{name}": self.cache for part in ("memory", "past") for name in caches}
        self.caches = caches
        self.encoder = self._traced(self._encode, vectors)
        self.step = self._traced(self._step, step)
        table = np.asarray(model.decoder_stack.embedding.embeddings)
        angles = np.arange(LENGTH)[:, None] / 10000 ** (np.arange(size) // 2 * 2 / size)
        self.positions = np.where(np.arange(size) % 2, np.cos(angles), np.sin(angles))
        self.table = table * size**0.5

    def _traced(self, function, shapes):
        specs = {name: tf.TensorSpec(shape, "float32", name) for name, shape in shapes.items()}
        return tf.function(function, autograph=False).get_concrete_function(**specs)

    def embedded(self, ids, first=0):
        """Returns the vectors of ids, which stand at `first` and after it, float32 (T, D)."""
        places = self.positions[first : first + len(ids)]
        return (self.table[np.array(ids)] + places).astype("float32")

    def _encode(self, x, bias):
        for block in self.model.encoder_stack.blocks:
            attention = block.self_attention
            pairs = attention.project_key_value(x)
            y, _ = attention.attend(x, *pairs, attention_bias=bias)
            x = normed(block.self_attention_norm, x + y)
            x = normed(block.feed_forward_norm, x + block.feed_forward(x))
        return self._named(block.cross_attention.project_key_value(x) for block in self.blocks)

    def _step(self, x, bias, past_bias, **caches):
        after = []
        for i, block in enumerate(self.blocks):
            attention, other = block.self_attention, block.cross_attention
            memory, past = (
                [caches[f"{part}_{name}_{i}"] for name in ("key", "value")]
                for part in ("memory", "past")
            )
            after.append(attention.project_key_value(x))
            pairs = [tf.concat(both, axis=2) for both in zip(past, after[-1], strict=True)]
            y, _ = attention.attend(x, *pairs, attention_bias=past_bias)
            x = normed(block.self_attention_norm, x + y)
            y, _ = other.attend(x, *memory, attention_bias=bias)
            x = normed(block.cross_attention_norm, x + y)
            x = normed(block.feed_forward_norm, x + block.feed_forward(x))
        return {"logits": self.model.decoder_stack.embedding.logits(x), **self._named(after)}

    def _named(self, pairs):
        return dict(zip(self.caches, [x for pair in pairs for x in pair], strict=True))


def normed(layer, x):
    """Computes a layer norm. Keras' function negates, and LiteRT negates no integers."""
    difference = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(difference * difference, axis=-1, keepdims=True)
    return difference * tf.math.rsqrt(variance + layer.epsilon) * layer.gamma + layer.beta


class File:
    """A LiteRT file; numbers outside are float32, as a caller of an NPU converts them."""

    def __init__(self, data):
        self.bytes = len(data)
        interpreter = Interpreter(model_content=data, num_threads=1)
        operators = {each["op_name"] for each in interpreter._get_ops_details()}
        tensors = interpreter.get_tensor_details()
        self.floats = sum(each["dtype"] == np.float32 for each in tensors)
        self.run, self.operators = interpreter.get_signature_runner(), sorted(operators)
        self.inputs, self.outputs = self.run.get_input_details(), self.run.get_output_details()

    def __call__(self, **values):
        found = self.run(**{name: self._in(name, value) for name, value in values.items()})
        return {name: self._out(name, value) for name, value in found.items()}

    def _in(self, name, value):
        dtype, (scale, zero) = (self.inputs[name][key] for key in ("dtype", "quantization"))
        if dtype == np.float32:
            return value
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        return np.clip(np.round(value / scale) + zero, least, most).astype(dtype)

    def _out(self, name, value):
        scale, zero = self.outputs[name]["quantization"]
        return value if value.dtype == np.float32 else ((value - float(zero)) * scale).astype("f")


def converted(functions, kind, sets=(None, None)):
    """Returns both files; `sets` are lists of inputs that show the ranges of all numbers."""
    files, (operators, dtype), weights = [], KINDS[kind], tf.Module()
    weights.all = [variable.value for variable in functions.model.variables]
    for function, inputs in zip((functions.encoder, functions.step), sets, strict=True):
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function], weights)
        if operators is not None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda inputs=inputs: inputs
            converter.target_spec.supported_ops = [operators]
            converter.inference_input_type = converter.inference_output_type = dtype
        files.append(File(converter.convert()))
    return files


def source(functions, ids, masked):
    """Returns the encoder's inputs for a sentence."""
    x, bias = np.zeros((1, LENGTH, functions.table.shape[1]), "f"), np.full(LENGTH, masked, "f")
    x[0, : len(ids)], bias[: len(ids)] = functions.embedded(ids), 0
    return {"x": x, "bias": bias.reshape(1, 1, 1, -1)}


def translated(functions, files, ids, masked, record):
    """Returns the tokens of greedy search; appends the inputs of its steps to `record`."""
    encoder, step = files
    given, token, found = source(functions, ids, masked), BEGIN_ID, []
    inputs = {f"memory_{name}": value for name, value in encoder(**given).items()}
    inputs |= {f"past_{name}": np.zeros(functions.cache, "f") for name in functions.caches}
    for place in range(LENGTH):
        bias = np.full((1, 1, 1, LENGTH + 1), masked, "f")
        bias[..., :place] = bias[..., -1] = 0
        x = functions.embedded([token], place)[None]
        case = {"x": x, "bias": given["bias"], "past_bias": bias}
        record.append({**case, **{name: value.copy() for name, value in inputs.items()}})
        outputs = step(**record[-1])
        token = END_ID + int(outputs["logits"][0, 0, END_ID:].argmax())
        if token == END_ID:
            break
        found.append(token)
        for name in functions.caches:
            inputs[f"past_{name}"][:, :, place] = outputs[name][:, :, 0]
    return found


def main():
    parser = bench.Parser(__doc__, "data", "model")
    parser.add_argument("--sentences", type=int, default=1000)
    args = parser.parse_args()
    import sacrebleu

    model, tokenizer = subjects.load_trained(args.model)
    functions, random = Functions(model), np.random.default_rng(0)
    lines, references = subjects.multi30k(args.data, count=args.sentences)
    shown, _ = subjects.multi30k(args.data, "valid", SENTENCES)
    lines, shown = (
        [row[:LENGTH] for row in subjects.source_ids(tokenizer, part)] for part in (lines, shown)
    )
    rows, exact = [], None
    for kind, masked in CASES:
        sets = (None, None)
        if exact is not None:  # the float32 files show the steps
            steps = []
            for ids in shown:
                translated(functions, exact, ids, masked, steps)
            chosen = random.choice(len(steps), STEPS, replace=False)
            sets = ([source(functions, ids, masked) for ids in shown], [steps[i] for i in chosen])
        files = converted(functions, kind, sets)
        exact = exact or files
        found = [translated(functions, files, ids, masked, []) for ids in lines]
        texts = tokenizer.decode(found)
        first = rows[0]["ids"] if rows else found
        row = {
            "precision": kind,
            "masked": masked,
            "bleu": sacrebleu.corpus_bleu(texts, [references]).score,
            "equal": subjects.equal(found, first),
            "bytes": sum(file.bytes for file in files),
            "float tensors": sum(file.floats for file in files),
            "operators": sorted({name for file in files for name in file.operators}),
            "ids": found,
        }
        rows.append(row)
        print({name: value for name, value in row.items() if name != "ids"}, flush=True)
    content = {"sentences": len(lines), "rows": [{**row, "ids": None} for row in rows]}
    bench.finish(args, "litert-integer", content, "ai-edge-litert")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
