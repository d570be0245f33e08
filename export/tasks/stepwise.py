"""A search without its loop, as two functions: the start before the first step, and one step.

In the layout "loop" the graph holds the loop, and the cache grows. Here the runtime runs the loop,
and every tensor keeps its shape. The cache has slots for all tokens from the start, and a step
writes its keys and values into its slots. An attention bias masks out the empty slots. So the
caches can be updated in place. The states of a recurrent decoder have a fixed size anyway.

Because shapes must not change, finished sentences stay in the batch until all are finished.

Shapes: B sentences, W hypotheses, H heads, L most steps of the batch, K and U sizes of a key and of
a value.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from keras_transformer.decoding import Cache, CachedDecoding, States
from keras_transformer.export.artefact import signature
from keras_transformer.export.exporter import Rule
from keras_transformer.export.tasks import GraphSource, SearchTask, Task
from keras_transformer.layers.attention import FORBIDDEN
from keras_transformer.search.inputs import read_inputs
from keras_transformer.search.loop import GivenTokens, Hypotheses, LoopInputs, add_token
from keras_transformer.types import Tensor

# A tensor, or tuples, lists and dicts of tensors.
Nest: TypeAlias = Any

RULES = (
    Rule(
        ValueError,
        lambda a: a.layout not in signature.LAYOUTS,
        lambda a: f"layout must be one of {signature.LAYOUTS}, but {a.layout!r} was passed.",
    ),
    Rule(
        ValueError,
        lambda a: a.layout == "steps" and a.search is None,
        lambda a: (
            "layout='steps' takes the loop of a search out of the graph: pass a search, or leave "
            "it out."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.layout == "steps" and a.search.reads_start_at_once,
        lambda a: (
            f"layout='steps' feeds start tokens one by one, but {type(a.search).__name__} reads "
            "them at once. Leave layout out."
        ),
    ),
    Rule(
        ValueError,
        lambda a: a.layout == "steps" and a.text,
        lambda a: (
            "text=True writes one file from text to text, which needs the loop in the graph: "
            "pass layout='loop', or leave text out, because the runtime does the tokenizing."
        ),
    ),
    Rule(
        TypeError,
        lambda a: a.layout == "steps" and not isinstance(a.searched, CachedDecoding),
        lambda a: (
            "layout='steps' has caches and steps of fixed shapes, which only Transformer and "
            f"CausalTransformer have, but the search would run: {type(a.searched).__name__}. Pass "
            "layout='loop'."
        ),
    ),
)

# Parts that a step changes. It only reads the rest.
CHANGING = ("position", *Hypotheses._fields, "states")
CHANGING += ("blocks", "key_places", "bias_places", "past_bias")


class FixedSlots(NamedTuple):
    """The slots of `DecoderSlots`, all allocated from the start.

    Attributes:
        blocks: for each block keys (B, H, L W, K) and values (B, H, L W, U), in the stored dtype.
        step_bias: (B, W, W), as in `DecoderSlots`; zeros if W is 1.
        key_places: int64 (B, H, W, 3), indices of the slots of this step.
        bias_places: int64 (B, W, W, 3), indices of the attention bias of this step.
    """

    blocks: Nest
    step_bias: Tensor
    key_places: Tensor
    bias_places: Tensor

    def add(self, past: Tensor, new: Tensor) -> Tensor:
        """Returns `past` with `new` in the slots of this step."""
        places = self.bias_places if len(past.shape) == 3 else self.key_places
        written = tf.tensor_scatter_nd_update(past, places, tf.cast(new, past.dtype))
        return tf.cast(written, new.dtype)

    def next_step(self) -> "FixedSlots":
        """Returns the slots of the next step."""
        step = [0, 0, self.step_bias.shape[1]]
        return self._replace(key_places=self.key_places + step, bias_places=self.bias_places + step)


class StepwiseSearch:
    """The two functions of a `SearchTask` in the layout "steps".

    Args:
        task: `SearchTask`.
        dtype: dtype in which keys and values are stored between the steps. Defaults to "float32".
    """

    def __init__(self, task: SearchTask, dtype: str = "float32") -> None:
        self.task: SearchTask = task
        # `task.searched` is the same model: this layout has no shortlist.
        self.model: Any = task.model
        self.search: Any = task.search
        self.dtype: str = dtype
        self._state: dict[str, Nest] = {}  # the state between steps

    @property
    def state_specs(self) -> dict[str, tf.TensorSpec]:
        """The `tf.TensorSpec` of each tensor that a step reads, by name. Trace `first` before."""
        tensors = _tensors(self._state).items()
        return {name: tf.TensorSpec(tensor.shape, tensor.dtype, name) for name, tensor in tensors}

    def first(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Returns all tensors that a step reads, by name, and sets `_state` for `step`."""
        task, search = self.task, self.search
        inputs = read_inputs(self.model, *task.split(inputs), search.call_defaults)
        memory, loop_inputs, hypotheses = search.begin(self.model, inputs)
        batch_size = tf.shape(loop_inputs.limit)[0]
        prompt_length = loop_inputs.given.prompt_length if loop_inputs.given else 1
        length = tf.maximum(tf.reduce_max(loop_inputs.limit + prompt_length), 2) - 1  # L
        rows = [batch_size, search.history_rows, length]
        records = {
            name: tf.zeros([*rows, *tf.unstack(tf.shape(record))[3:]], record.dtype)
            for name, record in hypotheses.records.items()
        }
        hypotheses = hypotheses._replace(**records)
        cache = self._fixed_cache(batch_size, length)
        self._state = self._split(memory, loop_inputs, tf.zeros([], tf.int32), hypotheses, cache)
        return _tensors(self._state)

    def step(self, **tensors: Tensor) -> dict[str, Tensor]:
        """Returns the changed tensors after one step, and whether another step is needed."""
        memory, loop_inputs, *before = self._join(_with_tensors(self._state, tensors))
        position, hypotheses, cache = add_token(
            self.search, self.model, memory, loop_inputs, *before
        )
        # The oldest column is dropped, so the last column is always the newest token.
        records = {name: record[:, :, 1:] for name, record in hypotheses.records.items()}
        hypotheses = hypotheses._replace(**records)
        if cache.by_sentence:
            cache = cache._replace(by_sentence=cache.by_sentence.next_step())
        after = self._split(memory, loop_inputs, position, hypotheses, cache)
        changed = _tensors({name: after[name] for name in CHANGING if name in after})
        unfinished = tf.reduce_any(hypotheses.running > float("-inf"))
        return {
            **{signature.NEXT + name: tensor for name, tensor in changed.items()},
            signature.UNFINISHED: unfinished,
        }

    def axes(self, name: str, rank: int) -> tuple[str, ...]:
        """Returns the names of an input's or output's axes."""
        if name in self.task.specs:
            return self.task.axes(name, rank)
        name = name.removeprefix(signature.NEXT)
        if name == "noise":
            return ("steps", "batch", "samples")
        rest = [f"{name}_axis_{i}" for i in range(1, rank)]
        return ("batch", *rest)[:rank]

    def _fixed_cache(self, batch_size: Tensor, length: Tensor) -> Cache:
        """Returns an empty cache with slots for `length` steps."""
        width = self.search.width
        cache = self.model.initial_cache(batch_size, width)
        slots = cache.by_sentence
        if not slots:
            return cache  # `States` have a fixed size
        blocks = [
            tuple(
                tf.zeros([batch_size, past.shape[1], length * width, past.shape[3]], past.dtype)
                for past in block
            )
            for block in slots.blocks
        ]
        step_bias = tf.zeros([batch_size, 1, 1]) if width == 1 else slots.step_bias
        key_places = _places(batch_size, slots.blocks[0][0].shape[1], width)
        bias_places = _places(batch_size, width, width)
        past_bias = tf.fill([batch_size, width, length * width], FORBIDDEN)
        return Cache(FixedSlots(blocks, step_bias, key_places, bias_places), past_bias)

    def _split(
        self,
        memory: Nest,
        loop_inputs: LoopInputs,
        position: Tensor,
        hypotheses: Hypotheses,
        cache: Cache,
    ) -> dict[str, Nest]:
        """Returns the state between steps, as a dict of nests."""
        parts = {
            "memory": _cast(memory, self.dtype),
            "limit": loop_inputs.limit,
            "noise": loop_inputs.noise,
            "options": dict(loop_inputs.options),
            "known": loop_inputs.known,
            "position": position,
            **hypotheses._asdict(),
        }
        if loop_inputs.given:
            parts[signature.START_LENGTH] = loop_inputs.given.prompt_length
            parts["tokens"] = loop_inputs.given.tokens
        slots, past_bias, _ = cache
        if not slots:
            return {**parts, "states": cache.by_hypothesis.blocks}
        return {
            **parts,
            **slots._replace(blocks=_cast(slots.blocks, self.dtype))._asdict(),
            "past_bias": past_bias,
        }

    def _join(
        self, parts: Mapping[str, Nest]
    ) -> tuple[Nest, LoopInputs, Tensor, Hypotheses, Cache]:
        """Inverts `_split`."""

        def build(kind: Any) -> Any:
            return kind(*[parts[name] for name in kind._fields])

        if "states" in parts:
            cache = Cache(by_hypothesis=States(parts["states"]))
        else:
            cache = Cache(build(FixedSlots), parts["past_bias"])
        memory = _cast(parts["memory"], self.model.compute_dtype)
        given = ()
        if signature.START_LENGTH in parts:
            given = GivenTokens(parts[signature.START_LENGTH], parts["tokens"])
        rest = (parts[name] for name in ("noise", "options", "known"))
        loop_inputs = LoopInputs(parts["limit"], given, *rest)
        return memory, loop_inputs, parts["position"], build(Hypotheses), cache


def graph_sources(task: Task, layout: str, precision: str) -> Iterator[tuple[str, GraphSource]]:
    """Yields the name and the source of each file. Trace a source before you take the next one.

    Args:
        task: `ForwardTask` or `SearchTask`.
        layout: "loop" or, for a `SearchTask`, "steps".
        precision: of the weights, as in `export_onnx`.
    """
    if layout == "loop":
        source = GraphSource(task.model, task.function, task.specs, task.axes, task.row_scales)
        yield signature.MODEL_FILE, source
        return
    search = StepwiseSearch(task, "float16" if precision == "float16" else "float32")
    model, specs, axes = task.model, task.specs, search.axes
    yield signature.FIRST_FILE, GraphSource(model, search.first, specs, axes, task.row_scales)
    yield signature.STEP_FILE, GraphSource(model, search.step, search.state_specs, axes)


def _places(batch_size: Tensor, rows: int, width: int) -> Tensor:
    """Returns the indices (B, rows, W, 3) of the first `width` slots of every row."""
    sizes = (batch_size, rows, width)
    indices = tf.meshgrid(*[tf.range(tf.cast(size, tf.int64)) for size in sizes], indexing="ij")
    return tf.stack(indices, axis=3)


def _cast(nest: Nest, dtype: str) -> Nest:
    """Casts the floating-point tensors of a nest."""
    return tf.nest.map_structure(lambda x: tf.cast(x, dtype) if x.dtype.is_floating else x, nest)


def _leaves(parts: Mapping[str, Nest]) -> Iterator[tuple[str, Any]]:
    """Yields pairs of a name and a leaf, in the order of `tf.nest`."""
    for name, nest in sorted(parts.items()):
        for number, leaf in enumerate(tf.nest.flatten(nest)):
            yield f"{name}.{number}" if tf.nest.is_nested(nest) else name, leaf


def _tensors(parts: Mapping[str, Nest]) -> dict[str, Tensor]:
    """Returns the tensors among the leaves, by name."""
    return {name: leaf for name, leaf in _leaves(parts) if tf.is_tensor(leaf)}


def _with_tensors(parts: dict[str, Nest], tensors: Mapping[str, Tensor]) -> dict[str, Nest]:
    """Returns `parts` with other tensors."""
    leaves = [tensors.get(name, leaf) for name, leaf in _leaves(parts)]
    return tf.nest.pack_sequence_as(parts, leaves)
