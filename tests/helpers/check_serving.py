"""Tests serving in an environment that holds only the extra `serve`.

    full/bin/python tests/helpers/check_serving.py make FOLDER  # all packages: makes artefacts
    serve/bin/python tests/helpers/check_serving.py FOLDER      # only `serve`: checks them

The first command exports an artefact of each task to FOLDER-TASK, and writes Keras' answers to
FOLDER-TASK.txt. The second checks that the command line gives the same answers, that no framework
is installed, and that the first translation takes at most `SECONDS` of processor time (the best
of three starts).
"""

import importlib.util
import os
import pathlib
import re
import resource
import subprocess
import sys

SECONDS = 2.0
FRAMEWORKS = ("tensorflow", "keras", "jax", "torch")
LINES = ["one two three", "", "twenty one", "three hundred and four"]
LABELS = ["even", "odd", "neither"]
TASKS = ("translate", "generate", "classify")


def make(folder):
    """Exports tiny models with random weights: the graphs are real, the answers meaningless.

    The generator's weights are doubled. Otherwise all answers would be equal.
    """
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(1)
    tokenizer = kt.Tokenizer.train(LINES, vocab_size=300, hard_vocab_limit=False)
    sizes = {"num_layers": 2, "d_model": 64, "num_heads": 4, "d_ff": 128}
    large = {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256}
    # Otherwise a random model may end at once, and empty lines would test nothing.
    search = {"min_length": 8}
    beam = kt.BeamSearch(beam_width=4, length_penalty=0.6, **search)
    translator = kt.Transformer(tokenizer.vocab_size, **large)
    make_search(folder, "translate", translator, tokenizer, beam)
    generator = kt.CausalTransformer(tokenizer.vocab_size, **sizes)
    generator.set_weights([2 * weight for weight in generator.get_weights()])
    make_search(folder, "generate", generator, tokenizer, kt.GreedySearch(**search))
    make_classifier(folder, tokenizer, sizes)


def make_search(folder, task, model, tokenizer, search):
    """Exports a model with a search, and writes Keras' answers."""
    from keras_transformer import export
    from keras_transformer.special_ids import BEGIN_ID, END_ID

    export.export_onnx(model, place(folder, task), tokenizer, search)

    def answer(line):
        pieces = tokenizer.encode(line)
        ids = [BEGIN_ID, *pieces] if task == "generate" else [*pieces, END_ID]
        text = tokenizer.decode(search(model, [ids]).ids.numpy()[0, 0])
        # The command line replaces line ends and null bytes, too.
        return re.sub(r"[\r\n]+", " ", text.replace("\0", "\ufffd"))

    write_answers(folder, task, answer)


def make_classifier(folder, tokenizer, sizes):
    import keras
    import numpy as np

    import keras_transformer as kt
    from keras_transformer import export
    from keras_transformer.special_ids import END_ID

    ids = keras.Input((None,), dtype="int32", name="source_ids")
    vectors = kt.TransformerEncoder(tokenizer.vocab_size, **sizes)(ids)
    pooled = keras.layers.GlobalAveragePooling1D()(vectors)
    model = keras.Model(ids, keras.layers.Dense(len(LABELS))(pooled))
    head = export.Classification(LABELS)
    export.export_onnx(model, place(folder, "classify"), tokenizer, head=head)

    def answer(line):
        logits = model(np.array([[*tokenizer.encode(line), END_ID]], "int32"))
        return LABELS[int(np.argmax(logits))]

    write_answers(folder, "classify", answer)


def write_answers(folder, task, answer):
    """Writes the answers to all lines. An empty line has an empty answer."""
    answers = [answer(line) if line else "" for line in LINES]
    if not all(map(bool, answers[:1] + answers[2:])):
        sys.exit(f"an empty answer: {answers}")
    expected(folder, task).write_text("".join(f"{one}\n" for one in answers), "utf-8")


def place(folder, task):
    return pathlib.Path(f"{folder}-{task}")


def expected(folder, task):
    return pathlib.Path(f"{folder}-{task}.txt")


def check(folder):
    for framework in FRAMEWORKS:
        if importlib.util.find_spec(framework) is not None:
            sys.exit(f"{framework} is installed, so this environment proves nothing")
    for task in TASKS:
        check_answers(folder, task)
    seconds = min(seconds_to_first_translation(command(folder, TASKS[0])) for _ in range(3))
    print(f"first translation: {seconds:.2f} s of work")
    if seconds > SECONDS:
        sys.exit(f"more than {SECONDS} s")


def command(folder, task):
    name = "keras_transformer.export.runtime"
    return [sys.executable, "-m", name, str(place(folder, task)), "--quiet"]


def check_answers(folder, task):
    """Exits unless the command line gives Keras' answers."""
    data = "".join(f"{line}\n" for line in LINES)
    done = subprocess.run(
        command(folder, task), input=data, capture_output=True, text=True, timeout=120
    )
    written, found = expected(folder, task).read_text("utf-8"), done.stdout
    if task == "classify":  # probabilities differ by rounding
        found = "".join(line.partition("\t")[0] + "\n" for line in found.splitlines())
    print(f"{task}: exit status {done.returncode}, {found.count(chr(10))} lines")
    if done.returncode or found != written:
        sys.exit(f"wrote:\n{done.stdout}\nexpected:\n{written}\nerrors:\n{done.stderr}")


def seconds_to_first_translation(command):
    """Returns processor time, which other load does not change."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [*command, "--read-ahead", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        os.write(process.stdin.fileno(), f"{LINES[0]}\n".encode())
        process.stdout.readline()
        process.stdin.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "make":
        make(sys.argv[2])
    elif len(sys.argv) == 2:
        check(sys.argv[1])
    else:
        sys.exit(__doc__)
