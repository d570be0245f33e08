"""Proves serving in an environment that holds the extra `serve` and nothing else.

    full/bin/python tests/support/check_serving.py make FOLDER  # where all is: an artefact
    serve/bin/python tests/support/check_serving.py FOLDER      # where only `serve` is: uses it

The first leaves what Keras wrote in FOLDER.txt. The second translates the same lines through the
command line and checks that it writes the same, that no framework is installed, and that the first
translation comes within `SECONDS` of the start of the process (the best of three starts, so that a
busy machine is not taken for a slow one).
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import time

SECONDS = 2.0
FRAMEWORKS = ("tensorflow", "keras", "jax", "torch")
LINES = ["one two three", "", "twenty one", "three hundred and four"]


def make(folder):
    """Exports a tiny model with random weights; its words mean nothing, its graph is a real one."""
    import keras

    import keras_transformer
    from keras_transformer import export
    from keras_transformer.training import callbacks

    keras.utils.set_random_seed(1)
    tokenizer = keras_transformer.Tokenizer.train(LINES, vocab_size=300, hard_vocab_limit=False)
    model = keras_transformer.Transformer(
        tokenizer.vocab_size, num_layers=4, d_model=128, num_heads=4, d_ff=256
    )
    # Left alone, a model with random weights may end at once, and empty lines would prove nothing.
    search = keras_transformer.BeamSearch(beam_width=4, length_penalty=0.6, min_length=8)
    export.export_onnx(model, folder, tokenizer, search)

    sentences = [line for line in LINES if line]  # an empty one is answered with an empty one
    translations = dict(
        zip(sentences, callbacks.translate(search, model, tokenizer, sentences), strict=True)
    )
    if not all(translations.values()):
        sys.exit(f"an empty translation: {translations}")
    written = "".join(f"{translations.get(line, '')}\n" for line in LINES)
    expected(folder).write_text(written, "utf-8")


def expected(folder):
    return pathlib.Path(f"{folder}.txt")


def check(folder):
    for framework in FRAMEWORKS:
        if importlib.util.find_spec(framework) is not None:
            sys.exit(f"{framework} is installed, so this environment proves nothing")

    command = [sys.executable, "-m", "keras_transformer.export.runtime", folder, "--quiet"]
    data = "".join(f"{line}\n" for line in LINES)
    done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=120)
    written = expected(folder).read_text("utf-8")
    print(f"exit status {done.returncode}, {done.stdout.count(chr(10))} lines")
    if done.returncode or done.stdout != written:
        sys.exit(f"wrote:\n{done.stdout}\nexpected:\n{written}\nerrors:\n{done.stderr}")

    seconds = min(seconds_to_first_translation(command) for _ in range(3))
    print(f"first translation: {seconds:.2f} s after the start")
    if seconds > SECONDS:
        sys.exit(f"more than {SECONDS} s")


def seconds_to_first_translation(command):
    start = time.monotonic()
    process = subprocess.Popen(
        [*command, "--read-ahead", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        os.write(process.stdin.fileno(), f"{LINES[0]}\n".encode())
        process.stdout.readline()
        seconds = time.monotonic() - start
        process.stdin.close()
    return seconds


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "make":
        make(sys.argv[2])
    elif len(sys.argv) == 2:
        check(sys.argv[1])
    else:
        sys.exit(__doc__)
