"""What serves an artefact, by its task: one call for all of them.

The command line, a service and an archive job do not care what an artefact does. They open it with
`open_runner` and ask it with `answers`.
"""

from keras_transformer.export.artefact.reader import read_task
from keras_transformer.export.artefact.signature import HEAD_TASKS
from keras_transformer.export.runtime.generator import Generator
from keras_transformer.export.runtime.predictor import Predictor
from keras_transformer.export.runtime.transcriber import Transcriber
from keras_transformer.export.runtime.translator import Translator

_SERVED = {
    "translate": Translator,
    "generate": Generator,
    "transcribe": Transcriber,
    **dict.fromkeys((*HEAD_TASKS, "forward"), Predictor),
}
# What is said of a line that it has done.
DONE = {"translate": "translated", "generate": "continued", "transcribe": "transcribed"}
# Those whose answers depend on a seed, where the artefact samples.
SEEDED = ("generate", "transcribe")


def open_runner(folder, providers=None, **options):
    """What serves an artefact, by the task that it was exported for.

    Args:
        folder: str or path, what `keras_transformer.export.export_onnx` wrote.
        providers, options: as `Translator` takes them.

    Returns:
        A `Translator`, `Generator`, `Transcriber` or `Predictor`.

    Raises:
        ArtefactError, ProviderError, ValueError: as `Translator`.

    Example:

    >>> open_runner("out/onnx").manifest["task"]  # doctest: +SKIP
    'translate'
    """
    return _SERVED[read_task(folder)](folder, providers, **options)


def answers(runner, items, seed=None, batch_tokens=2048, read_ahead=1024):
    """Iterator over the full result of each item, whatever the task.

    Args:
        runner: from `open_runner`.
        items: iterable of what the runner reads: lines of text, or what `Predictor` says.
        seed: of sampling, int or None.
        batch_tokens, read_ahead: as in `Translator.translate_stream`.

    Returns:
        Iterator of `Translation`, `Generation`, or what `Predictor` gives.

    Raises:
        TypeError, ValueError: as the runner's own methods; a seed is an error where nothing is
            sampled.

    Example:

    >>> runner = open_runner("out/onnx")  # doctest: +SKIP
    >>> [result.error for result in answers(runner, ["A man.", b"\\xff"])]  # doctest: +SKIP
    [None, 'not UTF-8 at byte 1 (invalid start byte)']
    """
    sizes = batch_tokens, read_ahead
    task = runner.manifest["task"]
    if task in SEEDED:
        return runner.n_best_stream(items, seed, *sizes)
    if seed is not None:
        raise ValueError(
            f"`seed` was passed, but this artefact's task is {task!r}, which draws no random "
            "numbers. Leave it out."
        )
    if task == "translate":
        return runner.n_best_stream(items, *sizes)
    return runner.predict_stream(items, *sizes)
