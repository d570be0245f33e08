"""Extracts the intent and the slots of spoken requests as JSON.

    python examples/extract.py                 # requests of a small grammar
    python examples/extract.py --data DIR      # DIR/slots/snips.train.gz, ...

    play Rain in Oslo by Eva   ->   {"intent":"music","artist":["Eva"],"song":["Rain in Oslo"]}

The model is the translator of the paper, from words to JSON. A JSON schema restricts its search; a
second score is without it. The validation set selects the epoch. ONNX Runtime writes the objects of
the test set.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # errors still raise exceptions

import json
import random
import re
from collections import Counter

import keras
from support import task_run
from support.baselines import text_classes, word_tags
from support.plots import plot_outcomes
from support.recipes import learning_rate
from support.scores.entities import entities
from support.sets import tagged_sentences

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export.runtime import Translator

# Arguments of the model, pieces, tokens per batch, epochs, copies with other values, and the share
# of random words among these values.
SMALL = dict(num_layers=1, d_model=64, num_heads=4, d_ff=128), 400, 1024, 12, 2, 0.05
LARGE = dict(num_layers=(3, 1), d_model=128, num_heads=4, d_ff=256), 1000, 2048, 6, 2, 0.15


def as_object(words, tags, intent):
    """Returns the intent and the texts of the slots, in the order of the schema."""
    found = {"intent": intent}
    for kind, start, end in sorted(entities(tags)):
        found.setdefault(kind, []).append(" ".join(words[start:end]))
    return found


def as_text(found):
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def schema_of(objects):
    """Returns the schema that allows each intent with the slots that it has in training."""
    kinds = {}
    for found in objects:
        kinds.setdefault(found["intent"], set()).update({*found} - {"intent"})
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    shapes = [
        {
            "type": "object",
            "properties": {"intent": {"const": intent}}
            | dict.fromkeys(sorted(kinds[intent]), texts),
            "required": ["intent"],
        }
        for intent in sorted(kinds)
    ]
    return {"anyOf": shapes}


def with_other_values(sentences, copies, share, draw):
    """Adds copies of the sentences whose slots have values of other sentences, or random words.

    So the model learns to copy values that it has not seen.
    """
    values, rows = {}, list(zip(*sentences, strict=True))
    every = [word for words in sentences.words for word in words]
    for words, tags, _ in rows:
        for kind, start, end in entities(tags):
            values.setdefault(kind, []).append(words[start:end])
    for words, tags, label in rows[:] * copies:
        mixed, marks, place = [], [], 0
        for kind, start, end in entities(tags):
            value = draw.choice(values[kind])
            if draw.random() < share:
                value = draw.choices(every, k=draw.randint(1, 4))
            mixed += words[place:start] + value
            marks += tags[place:start] + [f"B-{kind}"] + [f"I-{kind}"] * (len(value) - 1)
            place = end
        rows.append((mixed + words[place:], marks + tags[place:], label))
    return tagged_sentences.Sentences(*map(list, zip(*rows, strict=True)))


def pairs(sentences):
    """Returns requests and their lines of JSON."""
    objects = map(as_object, *sentences)
    return [" ".join(words) for words in sentences.words], [*map(as_text, objects)]


def read(line):
    """Returns the object of a line, or `None` if it is no JSON."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def scores(lines, gold, pattern):
    """Computes the shares of right objects, of valid JSON, and of lines that follow the schema."""
    return {
        "exact match": sum(read(a) == json.loads(b) for a, b in zip(lines, gold, strict=True))
        / len(gold),
        "valid JSON": sum(read(line) is not None for line in lines) / len(gold),
        "valid by the schema": sum(bool(re.fullmatch(pattern.regex, line)) for line in lines)
        / len(gold),
    }


def slot_outcomes(lines, gold):
    """Counts the outcomes of the values of each slot, for `plot_outcomes`."""
    outcomes = {}
    for line, other in zip(lines, map(json.loads, gold), strict=True):
        found = read(line) or {}
        for kind, values in other.items():
            for value in values if kind != "intent" else ():
                near = "other words" if kind in found else "missed"
                far = "other type" if [value] in found.values() else near
                outcome = "right" if value in found.get(kind, ()) else far
                outcomes.setdefault(kind, Counter())[outcome] += 1
    return outcomes


def main(argv=None):
    parser = task_run.make_parser("extract", __doc__, epochs=None)
    args = task_run.parse(parser, argv)
    sizes, pieces, tokens, epochs, *mixing = LARGE if args.data else SMALL
    args.epochs = args.epochs or epochs
    with task_run.TaskRun(args) as run:
        if args.data:
            sets = tagged_sentences.read_requests(args.data / "slots", "snips", args.limit)
        else:
            sets = tagged_sentences.made_requests(args.limit)
        train, valid, test = sets
        schema = schema_of(map(as_object, *train))
        shapes = [shape["properties"] for shape in schema["anyOf"]]
        # Each part of the JSON between two values is one piece. The space is one, too, so that a
        # word has the same pieces in a request and after a quotation mark.
        keys = sorted({key for shape in shapes for key in shape} - {"intent"})
        parts = [f'{{"intent":"{shape["intent"]["const"]}"' for shape in shapes]
        parts += [" ", '","', '"]', "}", *(f',"{key}":["' for key in keys)]
        requests = map(" ".join, train.words)
        tokenizer = kt.Tokenizer.train(requests, pieces, symbols=parts, hard_vocab_limit=False)
        mixed = with_other_values(train, *mixing, random.Random(args.seed))
        batches, measured = (
            kt.translation_batches(*pairs(some), tokenizer, tokens, seed=args.seed, shuffle=shuffle)
            for some, shuffle in ((mixed, True), (valid, False))
        )
        print(f"training: {batches.batches.report}\nvalidation: {measured.batches.report}")
        model = kt.Transformer(
            tokenizer.vocab_size, **sizes, dropout=0.1, norm_first=True, positions="rotary"
        )
        updates = args.epochs * len(batches)
        rate = learning_rate(peak=0.002, warmup_steps=300, anneal=True, updates=updates)
        adam = keras.optimizers.Adam(rate, 0.9, 0.98, 1e-9, global_clipnorm=1.0)
        model.compile(adam, loss=kt.SequenceCrossentropy(label_smoothing=0.1))
        run.fit(model, batches, validation_data=measured, epochs=args.epochs, best="val_loss")

        (requests, gold), lines = pairs(test), {}
        pattern = kt.Pattern(json_schema=schema, tokenizer=tokenizer)
        limit = 2 * max(map(len, tokenizer.encode(pairs(train)[1])))
        for name, constraints in {"onnx": [pattern], "onnx-free": []}.items():
            search = kt.BeamSearch(4, length_penalty=0.6, constraints=constraints)
            export.export_onnx(model, run.path / name, tokenizer, search, max_length=limit)
            lines[name] = Translator(run.path / name).translate(requests)
        usual, _ = Counter(pairs(train)[1]).most_common(1)[0]
        usual_tags = tagged_sentences.usual_tags(*train[:2], test.words)
        intents = text_classes([*map(" ".join, train.words)], train.labels, requests)
        tagged = {
            "usual slot of each word": usual_tags,
            "linear tagger": word_tags(*train[:2], test.words),
        }
        baseline = {"the most frequent object": [usual] * len(gold)}
        for name, tags in tagged.items():
            name = f"{name}, linear SVM for the intent"
            baseline[name] = [*map(as_text, map(as_object, test.words, tags, intents))]
        run.draw("slots.png", plot_outcomes(slot_outcomes(lines["onnx"], gold), most=20))
        run.write_score(
            model,
            scores(lines["onnx"], gold, pattern),
            others={"without the pattern": scores(lines["onnx-free"], gold, pattern)},
            data="SNIPS" if args.data else "requests of a small grammar",
            baseline={
                f"{name}, exact match": scores(found, gold, pattern)["exact match"]
                for name, found in baseline.items()
            },
        )
        for request, line in list(zip(requests, lines["onnx"], strict=True))[:5]:
            print(f"  {request}\n    {line}")


if __name__ == "__main__":
    main()
