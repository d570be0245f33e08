"""`SearchRunner`, the base of the classes with a search: their checks, and their streams.

A stream needs the layout "steps". Its session, a `StepsSession`, runs a graph for each step.
"""

import itertools
from collections.abc import Generator as Steps
from typing import Any, ClassVar, NamedTuple

from keras_transformer.export.artefact import signature
from keras_transformer.export.artefact.reader import Artefact, ArtefactError
from keras_transformer.export.artefact.results import Row
from keras_transformer.export.runtime.hypotheses import GrowingText
from keras_transformer.export.runtime.runner import Runner, Work
from keras_transformer.special_ids import END_ID
from keras_transformer.types import Array


class StreamPart(NamedTuple):
    """A part of a stream.

    Attributes:
        text: str, empty if no text is complete.
        prompt_tokens: int, tokens of the prompt.
        tokens: int, new tokens so far.
    """

    text: str
    prompt_tokens: int
    tokens: int


def prompt_ids(row: Row) -> list[int]:
    """Returns the ids of a prompt whose text shows; an end token would end the text there."""
    return [token for token in row.inputs[signature.SOURCE_IDS] if token != END_ID]


class SearchRunner(Runner):
    """The base of `Translator`, `Generator` and `Transcriber`.

    A subclass defines its `task`; `serves`, the same in words; and `takes`, the lists of input
    names that it serves, or `None` for all.
    """

    task: ClassVar[str]
    serves: ClassVar[str]
    takes: ClassVar[tuple[list[str], ...] | None] = None

    def _check(self, artefact: Artefact) -> None:
        """Raises `ArtefactError` unless the artefact has this task, and a tokenizer."""
        task, folder = artefact.manifest["task"], artefact.folder
        inputs = [value["name"] for value in artefact.manifest["inputs"]]
        if task != self.task or (self.takes and inputs not in self.takes):
            raise ArtefactError(
                f"{folder} was exported for the task {task!r} with the inputs {inputs}, and "
                f"{type(self).__name__} serves {self.serves}. Use the class for this task, run "
                f"{artefact.model_path.name} with its engine itself, or export it with such a "
                "search."
            )
        if artefact.tokenizer is None:
            raise ArtefactError(
                f"{folder} holds no {signature.TOKENIZER_FILE}. Export the model with its "
                "tokenizer: export_onnx(model, path, tokenizer, search)."
            )

    @property
    def streams(self) -> bool:
        """Whether the artefact can stream: it has the layout "steps"."""
        return self.manifest.get("layout") == "steps"

    def check_streams(self) -> None:
        """Raises `ArtefactError` unless the artefact can stream."""
        if not self.streams:
            raise ArtefactError(
                f"{self._arguments['folder']} has its search in one file, which returns the whole "
                "text. For a stream, export the model with layout='steps': "
                "export_onnx(model, path, tokenizer, search, layout='steps')."
            )

    def stream_steps(
        self, item: Any, seed: int | None = None, *, with_prompt: bool = False, **options: Any
    ) -> Steps[str, None, Any]:
        """Yields one str for each step of the model, often an empty one.

        Otherwise as `Generator.stream`. A caller can stop after any step. The Python generator
        returns the result, such as a `Generation`.
        """
        self.check_streams()
        call = self._options.read(options)
        call.fixed.update(self._seed_input(seed))
        rows, refused = self._reader.read([item])
        if refused:
            raise ValueError(refused[0])
        self._add_options(rows, call, 1)
        return self._run_steps(rows.get(0), call.fixed, with_prompt)

    def _run_steps(
        self, row: Row | None, fixed: dict[str, Array], with_prompt: bool
    ) -> Steps[str, None, Any]:
        """Yields the new text of each step; returns the result."""
        maker = self._result_maker
        if row is None:
            return maker.empty
        prompt = prompt_ids(row) if with_prompt else []
        text = GrowingText(lambda ids: maker.texts([ids])[0])
        if with_prompt:
            yield text.finish(*maker.texts([prompt]))
        for state in self.session.stream(self._inputs_of([row], fixed)):
            if state.unfinished:
                yield text.grow([*prompt, *state.shared_ids().tolist()])
        outputs = state.outputs(self._outputs)
        result = maker.result(row, {name: array[0] for name, array in outputs.items()})
        yield text.finish(result.full_text if with_prompt else result.text)
        return result

    def work(self, item: str | bytes, **options: Any) -> Work:
        """Continues a prompt; yields a `StreamPart` for each step of the model."""
        (length,) = self.lengths([item])
        steps = self.stream_steps(item, with_prompt=True, **options)
        try:
            next(steps)  # the prompt
            for tokens in itertools.count(2 - length):
                yield StreamPart(next(steps), length, max(0, tokens))
        except StopIteration as end:
            return end.value, length
        finally:
            steps.close()
