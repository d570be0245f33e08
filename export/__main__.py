"""Exports from the shell: `python -m keras_transformer.export MODEL.keras OUT --precision int8`."""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from keras_transformer.export import signature


def parser():
    made = argparse.ArgumentParser(
        prog="python -m keras_transformer.export",
        description="Export a saved model, with its search, to ONNX or as a SavedModel.",
    )
    made.add_argument("model", help="what `model.save` wrote, MODEL.keras")
    made.add_argument("out", help="folder to write; an earlier export there is replaced")
    made.add_argument("--format", choices=("onnx", "saved_model"), default="onnx")
    made.add_argument("--tokenizer", help="tokenizer to put beside the model, NAME.model")
    made.add_argument("--max-length", type=int, help="most generated tokens (default: source + 50)")
    search = made.add_argument_group(
        "search", "One of these; the default is a beam of 4 where the model can generate."
    )
    which = search.add_mutually_exclusive_group()
    which.add_argument("--beam-width", type=int, metavar="W", help="beam search of this width")
    which.add_argument("--greedy", action="store_true", help="greedy search")
    which.add_argument("--sampling", action="store_true", help="random sampling")
    which.add_argument("--forward", action="store_true", help="no search: the forward pass")
    search.add_argument("--length-penalty", type=float, default=0.6, help="of the beam (0.6)")
    search.add_argument("--temperature", type=float, default=1.0, help="of the sampling (1.0)")
    search.add_argument("--top-k", type=int, default=0, help="of the sampling (0: no limit)")
    search.add_argument("--top-p", type=float, default=1.0, help="of the sampling (1.0: no limit)")
    search.add_argument("--num-samples", type=int, default=1, help="of the sampling (1)")
    onnx = made.add_argument_group("onnx")
    onnx.add_argument("--precision", choices=signature.PRECISIONS, default="float32")
    onnx.add_argument("--max-source-length", type=int, default=512, help="tokens (512)")
    onnx.add_argument("--no-fuse", action="store_true", help="ONNX's own operators only")
    onnx.add_argument(
        "--keep-float", action="append", metavar="PATH",
        help="weights whose path starts so stay float32; can be repeated",
    )  # fmt: skip
    onnx.add_argument("--text", action="store_true", help="also write a file from text to text")
    onnx.add_argument("--tolerance", type=float, help="largest relative difference from Keras")
    made.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return made


def chosen_search(arguments, model):
    """The search that the arguments ask for, or `None` for a forward pass."""
    from keras_transformer.search import BeamSearch, GreedySearch, Sampling

    if arguments.greedy:
        return GreedySearch()
    if arguments.sampling:
        return Sampling(
            arguments.temperature,
            arguments.top_k,
            arguments.top_p,
            num_samples=arguments.num_samples,
        )
    asked = arguments.beam_width is not None
    if arguments.forward or not (asked or hasattr(model, "decode_step")):
        return None
    return BeamSearch(arguments.beam_width if asked else 4, arguments.length_penalty)


def main(argv=None):
    """Runs the command; returns the exit status: 0, or 1 with the reason on stderr."""
    arguments = parser().parse_args(argv)

    import keras

    import keras_transformer  # noqa: F401, registers every class
    from keras_transformer import export
    from keras_transformer.export.staging import ExportError
    from keras_transformer.text import Tokenizer

    try:
        model = keras.saving.load_model(arguments.model, compile=False)
        tokenizer = Tokenizer.load(arguments.tokenizer) if arguments.tokenizer else None
        search = chosen_search(arguments, model)
        shared = {"max_length": arguments.max_length, "verbose": not arguments.quiet}
        if arguments.format == "saved_model":
            export.export_saved_model(model, arguments.out, tokenizer, search, **shared)
        else:
            export.export_onnx(
                model,
                arguments.out,
                tokenizer,
                search,
                arguments.precision,
                max_source_length=arguments.max_source_length,
                fuse=not arguments.no_fuse,
                keep_float=arguments.keep_float,
                text=arguments.text,
                tolerance=arguments.tolerance,
                **shared,
            )
    except (ExportError, ImportError, OSError, TypeError, ValueError) as error:
        print(f"{parser().prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
