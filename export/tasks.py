"""What an export computes: a search or a forward pass, its names and sizes, and how to prove it.

Shared by the exporters to SavedModel and ONNX.

Shapes: B sentences, W hypotheses of each, S source length, P start (or prompt) length, T generated
length, V vocabulary.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.export import verify
from keras_transformer.export.runtime import signature
from keras_transformer.export.staging import ExportError
from keras_transformer.models import CausalTransformer, Transformer
from keras_transformer.search import BeamSearch, GreedySearch, Sampling
from keras_transformer.search.loop import EXTRA_LENGTH

MAX_SOURCE_LENGTH = 512
# Texts that strings are proven on.
PROOF = ("a", "two words", "", "Ein dritter Satz mit mehr Wörtern, 3 Zahlen & 😀.")


def check_arguments(model, tokenizer, search, max_length, max_source_length=MAX_SOURCE_LENGTH):
    """Raises `TypeError` or `ValueError` for what no exporter takes."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Exporters trace with TensorFlow, but Keras runs on {keras.backend.backend()} here. "
            "Save the model, then load and export it where KERAS_BACKEND=tensorflow is set."
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a Keras model, but {type(model).__name__} was passed.")
    if not model.built or not getattr(model, "inputs", None):
        raise ValueError(
            f"{model.name} is no functional model: its inputs are not known. Build it with "
            "keras.Input, as `Transformer` is."
        )
    if tokenizer is not None and not (hasattr(tokenizer, "save") and hasattr(tokenizer, "encode")):
        raise TypeError(
            f"tokenizer must be a Tokenizer, but {type(tokenizer).__name__} was passed."
        )
    if search is not None and not isinstance(search, (GreedySearch, BeamSearch, Sampling)):
        raise TypeError(
            "search must be a GreedySearch, BeamSearch or Sampling, but "
            f"{type(search).__name__} was passed."
        )
    if search is not None and not hasattr(model, "decode_step"):
        raise TypeError(
            f"{type(model).__name__} has no decode_step, so nothing can be searched with it. Pass "
            "a Transformer or CausalTransformer, or leave `search` out to export the forward pass."
        )
    if search is not None and tokenizer is not None:
        sizes, known = vocab_sizes(model), tokenizer.vocab_size
        if known > sizes["source"]:  # ids that it lacks itself it writes as unknown
            raise ValueError(
                f"The tokenizer has {known} ids, but the model reads {sizes['source']}. Pass the "
                "tokenizer that it was trained with, or leave it out to export ids."
            )
    if search is None and max_length is not None:
        raise ValueError(
            "max_length limits what a search generates: pass a search, or leave it out."
        )
    for name, value in (("max_length", max_length), ("max_source_length", max_source_length)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a positive integer, but {value!r} was passed.")


def check_weights(model):
    """Raises `ExportError` for a weight that holds NaN: such a model cannot be proven."""
    for variable in model.variables:
        if np.isnan(np.asarray(variable, np.float32)).any():
            raise ExportError(
                f"The weight {variable.path} holds NaN, so the model has no results to hold an "
                "export to. Export an earlier checkpoint."
            )


def vocab_sizes(model):
    """`{"source", "target"}` of a model that can be searched."""
    target = model.decoder.embedding
    source = model.encoder.embedding if model.encoder else target
    return {"source": source.vocab_size, "target": target.vocab_size}


def as_float32(model):
    """`model` itself where all of it is float32, else a copy that computes in float32.

    Converters and CPUs know little of bfloat16, and rounding twice helps nobody: lower precisions
    are made from float32 weights. And two programs that round to bfloat16 at other places give
    numbers too far apart to prove one by the other.
    """
    config = keras.saving.serialize_keras_object(model)
    plain = _with_float32(config)
    if plain == config:
        return model
    copy = keras.saving.deserialize_keras_object(plain)
    copy.set_weights([np.asarray(weight, np.float32) if weight.dtype.kind not in "iub" else weight
                      for weight in model.get_weights()])  # fmt: skip
    return copy


def _with_float32(config):
    """A configuration in which every dtype of reduced precision has become float32."""
    if isinstance(config, dict):
        if config.get("class_name") in ("DTypePolicy", "FloatDTypePolicy"):
            name = config["config"]["name"]
            reduced = name.startswith("mixed_") or name in ("bfloat16", "float16")
            return "float32" if reduced else config
        return {
            key: "float32"
            if key == "dtype" and value in ("bfloat16", "float16")
            else _with_float32(value)
            for key, value in config.items()
        }
    if isinstance(config, (list, tuple)):
        return type(config)(_with_float32(item) for item in config)
    return config


class SearchJob:
    """What an export with a search computes, and how it is proven."""

    def __init__(self, model, search, max_length):
        self.model, self.search, self.max_length = model, search, max_length
        self.random = isinstance(search, Sampling)
        self.task = "generate" if isinstance(model, CausalTransformer) else "translate"
        self.vocab_size = vocab_sizes(model)
        self.search_config = {"class_name": type(search).__name__, "config": search.get_config()}
        self.specs = {
            signature.SOURCE_IDS: tf.TensorSpec([None, None], "int32", signature.SOURCE_IDS)
        }
        if self.random:
            self.specs[signature.SEED] = tf.TensorSpec([], "int32", signature.SEED)

    def function(self, source_ids, **seed):
        result = self.search(self.model, source_ids, self.max_length, **seed)
        return {signature.TOKEN_IDS: result.ids, signature.SCORES: result.scores}

    def axes(self, name, rank):
        """Names of the axes of an input or output."""
        return signature.AXES[name]

    def limits(self, max_source_length):
        longest = self.model.max_length
        return {
            "source_length": min(max_source_length, longest or max_source_length),
            "target_length": self.max_length or longest,
            "extra_length": None if self.max_length else EXTRA_LENGTH,
        }

    def cases(self, samples):
        """Inputs to prove the file on: sentences of several lengths, padded, alone and together."""
        size, longest = self.vocab_size["source"], self.model.max_length
        if samples is None:
            samples = _random_ids(size, longest)
        cases = []
        for ids in _listed(samples):
            ids = np.asarray(ids)
            fits = ids.ndim == 2 and ids.size > 0 and ids.dtype.kind in "iu"
            if not (fits and 0 <= ids.min() and ids.max() < size):
                held = f"with ids from {ids.min()} to {ids.max()}" if fits else f"of {ids.dtype}"
                raise ValueError(
                    f"A sample must be an array (B, S) of ids from 0 to {size - 1}, but one of "
                    f"shape {ids.shape} {held} was passed."
                )
            if longest is not None and ids.shape[1] > longest:
                raise ValueError(
                    f"A sample has {ids.shape[1]} ids a sentence, but the model has learned "
                    f"positions for {longest} only."
                )
            cases.append({signature.SOURCE_IDS: ids.astype(np.int32)})
        if self.random:
            for seed, case in enumerate(cases, 17):
                case[signature.SEED] = np.array(seed, np.int32)
        return cases

    def expected(self, case):
        seed = {"seed": int(case[signature.SEED])} if self.random else {}
        result = self.search(self.model, case[signature.SOURCE_IDS], self.max_length, **seed)
        return result.ids.numpy(), result.scores.numpy()

    def compare(self, cases, expected, found, tolerance, exact=True):
        rescored = [
            self.rescore(case[signature.SOURCE_IDS], outputs[signature.TOKEN_IDS])
            for case, outputs in zip(cases, found, strict=True)
        ]
        return verify.compare_search(expected, found, rescored, tolerance, exact)

    def rescore(self, source_ids, token_ids):
        """The scores, (B, W), that the model's plain forward pass gives to hypotheses (B, W, T).

        It knows no cache, no loop and no beam, so it is a second way to the same numbers. Beside
        them their spread: the scores' sums over standard deviations of all log-probabilities.
        """
        width = token_ids.shape[1]
        tokens = token_ids.reshape(-1, token_ids.shape[2])  # (B W, T)
        start = np.asarray(self.model.start_ids(tf.constant(source_ids)))
        start = np.repeat(start, width, axis=0)  # (B W, P)
        pad = signature.SPECIAL_IDS["pad"]
        lengths = np.maximum((start != pad).sum(axis=1), 1)
        rows = [
            np.r_[one[:n], two[two != pad]]
            for one, n, two in zip(start, lengths, tokens, strict=True)
        ]
        targets = np.zeros((len(rows), max(map(len, rows), default=1)), np.int32)
        for target, row in zip(targets, rows, strict=True):
            target[: len(row)] = row
        inputs = targets[:, :-1]  # the last token is never read
        if self.task == "translate":
            inputs = {
                signature.SOURCE_IDS: np.repeat(source_ids, width, axis=0),
                signature.TARGET_IDS: inputs,
            }
        logits = np.asarray(self.model(inputs, training=False), np.float64)  # (B W, P + T - 1, V)
        verify.check_known("Logits of the forward pass", logits)
        peak = logits.max(axis=-1, keepdims=True)
        logits -= peak + np.log(np.exp(logits - peak).sum(axis=-1, keepdims=True))
        chosen = np.take_along_axis(logits, targets[:, 1:, None], axis=2)[..., 0]
        column = np.arange(chosen.shape[1])[None]
        generated = (column >= lengths[:, None] - 1) & (targets[:, 1:] != pad)
        spread = logits.std(axis=-1, where=np.isfinite(logits))
        count = np.maximum(generated.sum(axis=1), 1)
        norm = ((5.0 + count) / 6.0) ** getattr(self.search, "length_penalty", 0.0)
        return tuple(
            (np.where(generated, part, 0.0).sum(axis=1) / norm).reshape(-1, width)
            for part in (chosen, spread)
        )


class ForwardJob:
    """What an export of a forward pass computes, and how it is proven."""

    task, search_config = "forward", None

    def __init__(self, model):
        if isinstance(model, keras.Sequential):
            model = keras.Model(model.inputs, model.outputs, name=model.name)
        self.model = model
        self.longest = _smallest(model, "max_length", "sequence_length")
        self.inputs = {_plain(tensor.name): tensor for tensor in model.inputs}
        self.specs = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name)
            for name, tensor in self.inputs.items()
        }
        outputs = keras.tree.flatten(model.output)
        names = [signature.LOGITS] if hasattr(model, "decode_step") else model.output_names
        names = list(model.output) if isinstance(model.output, dict) else names
        self.outputs = [_plain(name) for name in names]
        if len(set(self.outputs) | set(self.inputs)) < len(outputs) + len(self.inputs):
            raise ValueError(
                f"Inputs {list(self.inputs)} and outputs {self.outputs} need names of their own. "
                "Name the layers that give the outputs, or let the model return a dict."
            )
        generates = isinstance(model, Transformer | CausalTransformer)
        self.vocab_size = vocab_sizes(model) if generates else {"source": None, "target": None}

    def function(self, **inputs):
        arranged = keras.tree.pack_sequence_as(
            self.model.input, [inputs[name] for name in self.inputs]
        )
        outputs = self.model(arranged, training=False)
        if isinstance(outputs, dict):
            return {_plain(name): tensor for name, tensor in outputs.items()}
        return dict(zip(self.outputs, keras.tree.flatten(outputs), strict=True))

    def axes(self, name, rank):
        """Names of the axes of an input or output, for those that have no fixed size."""
        known = signature.AXES.get(name, ())
        length = "source_length" if len(self.inputs) == 1 else f"{name}_length"
        other = ("batch", length, *(f"{name}_axis_{i}" for i in range(2, rank)))
        return known if len(known) == rank else other[:rank]

    def limits(self, max_source_length):
        return {
            "source_length": min(max_source_length, self.longest or max_source_length),
            "target_length": self.longest,
            "extra_length": None,
        }

    def cases(self, samples):
        if samples is not None:
            return [self._checked(case) for case in _listed(samples)]
        random, cases = np.random.default_rng(11), []
        highest = _smallest(self.model, "vocab_size", "input_dim") or 2
        for batch, length in ((1, 3), (5, 7), (2, 13)):
            length = min(length, self.longest or length)
            case = {}
            for name, tensor in self.inputs.items():
                free = iter((batch, length, length, length))
                shape = [next(free) if size is None else size for size in tensor.shape]
                dtype = np.dtype(tensor.dtype)
                if dtype.kind in "iu":
                    case[name] = random.integers(1, highest, shape).astype(dtype)
                    case[name][-1, (length + 1) // 2 :] *= batch == 1  # padding in the last row
                else:
                    case[name] = random.standard_normal(shape).astype(dtype)
            cases.append(case)
        return cases

    def _checked(self, case):
        """A sample as it is fed: raises `ValueError` unless its arrays suit the model's inputs."""
        if not isinstance(case, dict) or set(case) != set(self.inputs):
            given = sorted(case) if isinstance(case, dict) else type(case).__name__
            raise ValueError(
                f"A sample must be a dict with an array for each of {sorted(self.inputs)}, but "
                f"{given} was passed."
            )
        arrays = {name: np.asarray(array) for name, array in case.items()}
        for name, array in arrays.items():
            tensor = self.inputs[name]
            fits = tf.TensorShape(tensor.shape).is_compatible_with(array.shape) and array.size > 0
            if not (fits and np.can_cast(array.dtype, tensor.dtype, "same_kind")):
                raise ValueError(
                    f"The sample's {name!r} has shape {array.shape} and dtype {array.dtype}, but "
                    f"the model takes {tensor.shape} and {tensor.dtype}."
                )
        return {name: array.astype(self.inputs[name].dtype) for name, array in arrays.items()}

    def expected(self, case):
        tensors = {name: tf.constant(array) for name, array in case.items()}
        return {name: np.asarray(tensor) for name, tensor in self.function(**tensors).items()}

    def compare(self, cases, expected, found, tolerance, exact=True):
        return verify.compare_forward(expected, found, tolerance, exact)


def _random_ids(vocab_size, max_length):
    """Batches of source ids (B, S), some rows padded on the right."""
    random, batches = np.random.default_rng(7), []
    for batch, length in ((1, 3), (3, 7), (2, 11)):
        length = min(length, max_length or length)
        ids = random.integers(min(4, vocab_size - 1), vocab_size, (batch, length))
        for row in range(1, batch):
            ids[row, max(1, length - 2 * row) :] = signature.SPECIAL_IDS["pad"]
        batches.append(ids)
    return batches


def _listed(samples):
    if isinstance(samples, (str, dict)) or not len(samples):
        raise ValueError(
            "samples must be a list of at least one sample, or None for random ones, but "
            f"{samples!r} was passed."
        )
    return samples


def _smallest(model, *names):
    """The smallest integer that a layer has as one of these attributes; None where none has one."""
    found = []
    for layer in [model, *model.layers]:
        found += [getattr(layer, name, None) for name in names]
        if isinstance(layer, keras.Model) and layer is not model:
            found.append(_smallest(layer, *names))
    return min((size for size in found if isinstance(size, int) and size > 0), default=None)


def proof_texts(tokenizer, longest):
    """Texts to prove strings on, as many as have no more than `longest` tokens and a mark."""
    return [text for text in PROOF if len(tokenizer.encode(text)) < (longest or np.inf)]


def _plain(name):
    return name.replace("/", "_").replace(":", "_")
