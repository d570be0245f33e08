"""Trains a translator on two text files, measures BLEU, and exports one ONNX file.

    python examples/translate.py                                     # number words: no files
    python examples/translate.py --data DIR --source en --target de  # train.en, train.de, ...

The script trains on every GPU (or on logical CPUs with `--replicas`) and averages checkpoints
(section 6.1). BLEU on the validation set selects the average and the length penalty. The script
then measures BLEU on the test sets, exports the model, and translates the last test set with ONNX
Runtime in a process without TensorFlow. All files go to `--output`. Ctrl-C leaves a model there,
and the same command resumes.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import keras
import tensorflow as tf
from support import arguments
from support.devices import device_strategy
from support.recipes import learning_rate
from support.run_folder import RunFolder
from support.scores.bleu import bleu
from support.selection import choose_weights

import keras_transformer as kt
from keras_transformer import export, plots
from keras_transformer.translation import translate

tf.get_logger().setLevel("ERROR")  # no warnings of retracing: each search has a separate graph


def parse_arguments(argv):
    parser = arguments.make_parser("python examples/translate.py", __doc__.splitlines()[0])
    add = parser.add_argument_group("translation").add_argument
    add("--beam-width", type=int, default=5)
    add("--length-penalty", type=float, nargs="+", default=[0.6, 1.0, 1.4], help="all are tried")
    add("--bleu-tokenize", help="sacreBLEU's tokeniser; default: 13a, or char for number words")
    add("--no-export", action="store_true", help="stop after BLEU")
    args = arguments.parse(parser, argv)
    args.bleu_tokenize = args.bleu_tokenize or ("13a" if args.data else "char")
    return args


def train(args, run, text, tokenizer, strategy):
    """Trains up to `args.epochs`, or resumes a stopped run. Returns False after Ctrl-C."""
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    multiple = strategy.num_replicas_in_sync
    options = dict(tokens_per_batch=args.tokens_per_batch, batch_multiple=multiple)
    options["static_shapes"] = on_gpu  # XLA compiles again for each shape
    batches = kt.translation_batches(
        *text.train, tokenizer, seed=args.seed, sampling_alpha=args.sampling_alpha, **options
    )
    valid = kt.translation_batches(*text.valid, tokenizer, shuffle=False, **options)
    print(f"training: {batches.batches.report}\nvalidation: {valid.batches.report}")
    loss = kt.SequenceCrossentropy(label_smoothing=0.1)
    with strategy.scope():
        model = kt.Transformer(tokenizer.vocab_size, **args.recipe["model"], dtype=args.dtype)
        rate = learning_rate(**args.recipe["rate"], updates=args.epochs * len(batches))
        model.compile(
            keras.optimizers.Adam(rate, 0.9, 0.98, 1e-9, global_clipnorm=1.0),
            loss=loss if args.r_drop is None else kt.RDrop(loss, args.r_drop),
            weighted_metrics=[kt.Perplexity()],
            jit_compile=on_gpu and multiple == 1,  # XLA compiles for one device
        )
    if args.start_from:
        model.set_weights(keras.saving.load_model(args.start_from / "model.keras").get_weights())
    print(f"{model.count_params():,} parameters, {strategy.num_replicas_in_sync} replicas")
    try:
        run.fit(model, batches, args.epochs, validation_data=valid)
    except KeyboardInterrupt:
        return False
    return True


def evaluate(args, run, model, tokenizer, text):
    """Chooses weights for `model`; returns the choice, scores and sources of the last test set."""

    def translations(length_penalty, sources):
        search = kt.BeamSearch(args.beam_width, length_penalty)
        return translate(search, model, tokenizer, sources)

    def score(length_penalty):
        found = translations(length_penalty, text.valid[0])
        return bleu(found, text.valid[1], args.bleu_tokenize)["bleu"]

    chosen = choose_weights(model, run, score, args.length_penalty, usual=args.recipe["average"])
    run.save_model(model)
    scores = {}
    for name, (sources, references) in (text.tests or {"valid": text.valid}).items():
        found = translations(chosen["length_penalty"], sources)
        scores[name] = bleu(found, references, args.bleu_tokenize)
        told = "{}: BLEU {bleu:.2f} ({signature}), exact match {exact_match:.1%}"
        print(told.format(name, **scores[name]))
    samples = list(zip(sources, found, strict=True))[:20]
    for source, translation in samples[:5]:
        print(f"  {source} -> {translation}")
    sample = min(samples, key=lambda pair: abs(len(pair[0].split()) - 8))  # fits on a page
    with run.replace("attention.png") as aside:
        plots.plot_translation(model, tokenizer, *sample).savefig(aside)
    return chosen, scores, sources


def finish(args, run, text, tokenizer, stopped):
    """Averages checkpoints, then measures and exports the model, and writes the report."""
    # Always float32, because exports and other backends need it.
    model = kt.Transformer(tokenizer.vocab_size, **args.recipe["model"])
    epochs = sorted(run.weights())[-args.recipe["average"] :]
    if not epochs:
        raise KeyboardInterrupt("No epoch is finished.")
    run.load(model, epochs)
    run.save_model(model)  # kept if a later step fails
    if stopped:
        raise KeyboardInterrupt(f"model.keras is the average of epochs {epochs}.")
    chosen, scores, lines = evaluate(args, run, model, tokenizer, text)
    search, compared = kt.BeamSearch(args.beam_width, chosen["length_penalty"]), None
    if not args.no_export:
        export.export_saved_model(model, run.path / "saved_model", tokenizer, search)
        # `text` adds a second model, from strings to strings, which contains the tokenizer.
        export.export_onnx(model, run.path / "onnx", tokenizer, search, text=True)
        compared = export.compare_with_keras(model, run.path / "onnx", lines)
        print(compared)
    facts = dict(command=args.command, seed=args.seed, beam_width=args.beam_width)
    facts |= dict(parameters=model.count_params(), chosen_on_validation=chosen, scores=scores)
    run.write_report(**facts, onnx_beside_keras=compared and compared._asdict())
    print(f"Saved in {run.path}: {', '.join(sorted(path.name for path in run.path.iterdir()))}")


def main(argv=None):
    args = parse_arguments(argv)
    run = RunFolder(args.output)
    try:
        print("reading the text", flush=True)
        text = arguments.read_text(args)
        run.claim(arguments.run_settings(args, text.train), finished=args.evaluate)
        strategy = device_strategy(args.replicas)
        keras.utils.set_random_seed(args.seed)
        if args.start_from:
            run.copy_tokenizer(args.start_from)
        tokenizer = run.tokenizer(text.train[0] + text.train[1], args.vocab_size)
        stopped = not args.evaluate and not train(args, run, text, tokenizer, strategy)
        finish(args, run, text, tokenizer, stopped)
    except (ValueError, OSError) as error:  # others need a traceback
        sys.exit(f"translate.py: {error}")
    except KeyboardInterrupt as error:
        print(f"Stopped. {error} Repeat the command to resume, or evaluate with --evaluate.")
        sys.exit(130)  # as shells do after Ctrl-C


if __name__ == "__main__":
    main()
