"""Export to SavedModel: strings in, translations out, for whoever serves with TensorFlow.

Shapes: B sentences, W hypotheses of each, S source length, T target length.
"""

import itertools
import json
import warnings

import numpy as np
import tensorflow as tf

from keras_transformer.export import verify
from keras_transformer.export.arguments import check_arguments, check_constrained, check_weights
from keras_transformer.export.artefact import signature
from keras_transformer.export.float32 import as_float32
from keras_transformer.export.heads import check_head, check_head_alone, described
from keras_transformer.export.staging import Progress, staged, why_not_saved_model
from keras_transformer.export.tasks import ForwardTask, SearchTask
from keras_transformer.export.tasks.samples import proof_texts

# A search in TensorFlow and the same search traced: other orders of summation, nothing else.
TOLERANCE = 1e-4


def export_saved_model(
    model,
    path,
    tokenizer=None,
    search=None,
    *,
    target_tokenizer=None,
    head=None,
    max_length=None,
    grammar=None,
    samples=None,
    tolerance=TOLERANCE,
    verbose=True,
):
    """Writes a SavedModel that needs only TensorFlow, and tensorflow-text where strings are served.

    Its signatures, each with inputs and outputs by name (`export.artefact.signature`):

    | signature | there with | inputs | outputs |
    | --- | --- | --- | --- |
    | `translate` | `search`, `tokenizer` | `text` (B,) | `texts` (B, W), `scores` (B, W) |
    | `search` | `search` | `source_ids` (B, S) | `token_ids` (B, W, T), `scores` (B, W) |
    | `logits` | the model gives logits | those of the model | `logits` |
    | `forward` | it gives something else | those of the model | the model's own outputs |

    The first is called `generate` for a `CausalTransformer`. For an encoder of one's own, which
    reads no ids, it is called `transcribe`; this and `search` take the encoder's own inputs.

    With `Sampling` the first two also take the scalar `seed`. A text becomes its pieces and the
    end token; for a `CausalTransformer` the begin token and its pieces, which the search goes on
    from. Blank text gives one empty hypothesis of score 0. Before the folder appears it has been
    loaded in a process without Keras, and its results held to Keras' own.

    Args:
        model: `Transformer`, `CausalTransformer` or a model of `importers.keras_hub` with `search`;
            without, any functional Keras model. It is exported in float32, whatever its dtype
            policy.
        path: folder to write. An earlier SavedModel at this place is replaced in one move, at
            the end.
        tokenizer: `Tokenizer`, whose model is written into the SavedModel. Defaults to `None`.
        target_tokenizer: `Tokenizer` of what the model writes. Defaults to `None`: `tokenizer`.
        search: `GreedySearch`, `BeamSearch` or `Sampling`. Defaults to `None`: the forward pass
            only.
        head: what the outputs of a model without search mean, as in `export_onnx`. It is checked,
            and written beside the model as `assets.extra/head.json`; signatures give the model's
            outputs. Defaults to `None`.
        max_length: most generated tokens, the end token included. Defaults to `None`: the source's
            length + 50, or what a model with learned positions can hold.
        grammar: what the search may write, as in `export_onnx`. Defaults to `None`: anything.
        samples: arrays of ids (B, S) to prove the search on, or dicts of inputs for a model without
            one. Defaults to `None`: random ones.
        tolerance: largest difference from Keras' numbers, relative to their size. Defaults to 1e-4.
        verbose: whether to tell on stderr what is being done. Defaults to `True`.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, before anything is done.
        ExportError: a check failed. What was at `path` is as before.

    Example:

    >>> export_saved_model(model, "out/saved_model", tokenizer, BeamSearch(4))  # doctest: +SKIP
    >>> translate = tf.saved_model.load("out/saved_model").signatures["translate"]  # doctest: +SKIP
    >>> translate(text=tf.constant(["A man rides a bicycle."]))  # doctest: +SKIP
    """
    check_arguments(model, tokenizer, search, max_length, target_tokenizer=target_tokenizer)
    check_head_alone(head, search)
    check_constrained(search, grammar)
    tell = Progress(verbose)
    check_weights(model)
    passed, model = model, as_float32(model)
    forward, cases = ForwardTask(model, head, passed), {}
    check_head(forward, tokenizer)
    gives_logits = forward.outputs == [signature.LOGITS]
    tasks = {signature.LOGITS if gives_logits else signature.FORWARD: forward}
    if search is not None:
        tasks[signature.SEARCH] = SearchTask(
            model, search, max_length, grammar=grammar, passed=passed
        )
    for name, task in tasks.items():
        cases[name] = task.cases(samples if name == list(tasks)[-1] else None)
    with staged(path, why_not_saved_model) as folder:
        with tell("tracing"):
            functions = {name: _function(task.function, task.specs) for name, task in tasks.items()}
            if search is not None and tokenizer is not None:
                functions[task.name] = _texts(task, tokenizer, target_tokenizer or tokenizer)
                cases[task.name] = _text_cases(task, tokenizer, cases[signature.SEARCH])
        with tell("writing"), warnings.catch_warnings():
            # TensorFlow's own saving code warns of NumPy's future; nobody here can act on it.
            warnings.simplefilter("ignore", DeprecationWarning)
            module = tf.Module()
            module.weights = [variable.value for variable in model.variables]
            module.functions = functions
            tf.saved_model.save(module, str(folder), signatures=functions)
        if head is not None:
            extra = folder / "assets.extra"  # where TensorFlow leaves files that it does not know
            extra.mkdir()
            (extra / "head.json").write_text(json.dumps(described(head)), encoding="utf-8")
        with tell("proving it in a process without Keras"):
            _prove(folder, tasks, functions, cases, tolerance)


def _prove(folder, tasks, functions, cases, tolerance):
    """Holds every signature of the written folder to Keras, or to the function that was written."""
    pairs = [(name, case) for name, some in cases.items() for case in some]
    names, flat = zip(*pairs, strict=True)
    found = iter(verify.probe(folder, flat, signatures=names))
    for name, some in cases.items():
        outputs = list(itertools.islice(found, len(some)))
        if name in tasks:
            expected = [tasks[name].expected(case) for case in some]
            tasks[name].compare(some, expected, outputs, tolerance)
        else:
            tensors = {key: tf.constant(array) for key, array in some[0].items()}
            expected = functions[name](**tensors)
            verify.compare_texts(expected, outputs[0], tolerance)


def _function(function, specs):
    """The concrete function of `function`, which takes its inputs by name."""
    return tf.function(function, autograph=False).get_concrete_function(**specs)


def _text_cases(task, tokenizer, cases):
    """Inputs to prove the signature of strings on."""
    if not task.reads_ids:
        return cases[:1]
    seed = {signature.SEED: np.array(17, np.int32)} if task.random else {}
    return [{signature.TEXT: np.array(proof_texts(tokenizer, task.longest)), **seed}]


def _texts(task, tokenizer, target_tokenizer):
    """The concrete function that gives strings: tokenizer, search, tokenizer.

    Text ends at a NUL character, as it does for the operator of onnxruntime-extensions, and NUL in
    the output becomes U+FFFD, so that SavedModel and text model agree on every string.
    """
    generate = task.name == "generate"

    def translate(text, **seed):
        text = tf.strings.regex_replace(text, r"(?s)\x00.*", "")
        ids = tokenizer.tf_encode(text)  # ragged (B, S)
        blank = tf.strings.regex_full_match(text, signature.BLANK) | (ids.row_lengths() == 0)
        blank = blank[:, tf.newaxis]  # (B, 1)
        mark = tf.fill(
            [tf.shape(text)[0], 1], signature.SPECIAL_IDS["begin" if generate else "end"]
        )
        ids = tf.concat([mark, ids] if generate else [ids, mark], axis=1)
        ids = ids.to_tensor(signature.SPECIAL_IDS["pad"])
        found = transcribe(**{signature.SOURCE_IDS: ids}, **seed)
        texts, scores = found[signature.TEXTS], found[signature.SCORES]
        nothing = np.where(np.arange(scores.shape[1]) < 1, 0.0, -np.inf).astype("float32")
        return {
            signature.TEXTS: tf.where(blank, "", texts),
            signature.SCORES: tf.where(blank, nothing, scores),
        }

    def transcribe(**inputs):
        found = task.function(**inputs)
        tokens, known = found[signature.TOKEN_IDS], target_tokenizer.vocab_size
        # Ids that the tokenizer lacks, as where a vocabulary was rounded up, are unknown.
        tokens = tf.where(tokens < known, tokens, signature.SPECIAL_IDS["unknown"])
        texts = target_tokenizer.tf_decode(tokens)
        texts = tf.strings.regex_replace(texts, r"\x00", signature.REPLACEMENT)
        return {signature.TEXTS: texts, signature.SCORES: found[signature.SCORES]}

    if not task.reads_ids:
        return _function(transcribe, task.specs)
    specs = {**task.specs, signature.TEXT: tf.TensorSpec([None], tf.string, signature.TEXT)}
    del specs[signature.SOURCE_IDS]
    return _function(translate, specs)
