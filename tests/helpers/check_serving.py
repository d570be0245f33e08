"""Proves serving in an environment that holds the extra `serve` and nothing else.

    full/bin/python tests/helpers/check_serving.py make FOLDER  # where all is: artefacts
    serve/bin/python tests/helpers/check_serving.py FOLDER      # where only `serve` is: uses them

The first makes an artefact of each kind, FOLDER-TASK, and leaves what Keras wrote beside it, in
FOLDER-TASK.txt. The second answers the same lines through the command line and checks that it
writes the same, that no framework is installed, and that the first translation comes within
`SECONDS` of processor time (the best of three starts).
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
    """Exports tiny models with random weights; what they say means nothing, their graphs are real.

    Weights are twice as large as usual: otherwise every line would be answered alike.
    """
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(1)
    tokenizer = kt.Tokenizer.train(LINES, vocab_size=300, hard_vocab_limit=False)
    sizes = {"num_layers": 2, "d_model": 64, "num_heads": 4, "d_ff": 128}
    large = {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256}
    # Left alone, a model with random weights may end at once, and empty lines would prove nothing.
    search = {"min_length": 8}
    beam = kt.BeamSearch(beam_width=4, length_penalty=0.6, **search)
    translator = kt.Transformer(tokenizer.vocab_size, **large)
    make_search(folder, "translate", translator, tokenizer, beam)
    generator = kt.CausalTransformer(tokenizer.vocab_size, **sizes)
    generator.set_weights([2 * weight for weight in generator.get_weights()])
    make_search(folder, "generate", generator, tokenizer, kt.GreedySearch(**search))
    make_classifier(folder, tokenizer, sizes)


def make_search(folder, task, model, tokenizer, search):
    """Exports a model with a search, and writes what Keras makes of the lines."""
    from keras_transformer import export
    from keras_transformer.special_ids import BEGIN_ID, END_ID

    export.export_onnx(model, place(folder, task), tokenizer, search)

    def answer(line):
        pieces = tokenizer.encode(line)
        ids = [BEGIN_ID, *pieces] if task == "generate" else [*pieces, END_ID]
        text = tokenizer.decode(search(model, [ids]).ids.numpy()[0, 0])
        # As the command line writes what a model that knows bytes may say.
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
    """Writes the answers to all lines; an empty one is answered with an empty one."""
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
    """Ends the process unless the command line writes what Keras wrote."""
    data = "".join(f"{line}\n" for line in LINES)
    done = subprocess.run(
        command(folder, task), input=data, capture_output=True, text=True, timeout=120
    )
    written, found = expected(folder, task).read_text("utf-8"), done.stdout
    if task == "classify":  # probabilities are rounded, here a bit and there a bit
        found = "".join(line.partition("\t")[0] + "\n" for line in found.splitlines())
    print(f"{task}: exit status {done.returncode}, {found.count(chr(10))} lines")
    if done.returncode or found != written:
        sys.exit(f"wrote:\n{done.stdout}\nexpected:\n{written}\nerrors:\n{done.stderr}")


def seconds_to_first_translation(command):
    """Processor time, which other processes on the machine leave alone."""
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
