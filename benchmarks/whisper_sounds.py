"""Sounds with known words: spoken digits, and sentences for espeak-ng to speak; error rates.

There are twenty sentences in each of ten languages: four subjects, five verbs.
"""

import re
import subprocess
import sys
import tarfile

import bench

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_PARTS = {
    "en": (
        ("My sister", "The old teacher", "Our neighbour", "The young doctor"),
        (
            "reads a long letter.",
            "drinks coffee in the kitchen.",
            "is waiting for the last train.",
            "bought bread and milk yesterday.",
            "sings in the garden.",
        ),
    ),
    "de": (
        ("Meine Schwester", "Der alte Lehrer", "Unser Nachbar", "Die junge Ärztin"),
        (
            "liest einen langen Brief.",
            "trinkt Kaffee in der Küche.",
            "wartet auf den letzten Zug.",
            "hat gestern Brot und Milch gekauft.",
            "singt im Garten.",
        ),
    ),
    "fr": (
        ("Ma sœur", "Le vieux professeur", "Notre voisin", "La jeune directrice"),
        (
            "lit une longue lettre.",
            "boit du café dans la cuisine.",
            "attend le dernier train.",
            "a acheté du pain et du lait hier.",
            "chante dans le jardin.",
        ),
    ),
    "es": (
        ("Mi hermana", "El viejo profesor", "Nuestro vecino", "La joven doctora"),
        (
            "lee una carta larga.",
            "bebe café en la cocina.",
            "espera el último tren.",
            "compró pan y leche ayer.",
            "canta en el jardín.",
        ),
    ),
    "it": (
        (
            "Mia sorella",
            "Il vecchio professore",
            "Il nostro vicino",
            "La giovane dottoressa",
        ),
        (
            "legge una lunga lettera.",
            "beve il caffè in cucina.",
            "aspetta l'ultimo treno.",
            "ha comprato pane e latte ieri.",
            "canta nel giardino.",
        ),
    ),
    "pt": (
        ("Minha irmã", "O velho professor", "O nosso vizinho", "A jovem médica"),
        (
            "lê uma carta longa.",
            "bebe café na cozinha.",
            "espera o último autocarro.",
            "comprou pão e leite ontem.",
            "canta no jardim.",
        ),
    ),
    "nl": (
        ("Mijn zus", "De oude leraar", "Onze buurman", "De jonge dokter"),
        (
            "leest een lange brief.",
            "drinkt koffie in de keuken.",
            "wacht op de laatste trein.",
            "heeft gisteren brood en melk gekocht.",
            "zingt in de tuin.",
        ),
    ),
    "pl": (
        ("Moja siostra", "Stary nauczyciel", "Nasz sąsiad", "Młoda lekarka"),
        (
            "czyta długi list.",
            "pije kawę w kuchni.",
            "czeka na ostatni pociąg.",
            "kupuje chleb i mleko.",
            "śpiewa w ogrodzie.",
        ),
    ),
    "ru": (
        ("Моя сестра", "Старый учитель", "Наш сосед", "Молодой врач"),
        (
            "читает длинное письмо.",
            "пьёт кофе на кухне.",
            "ждёт последний поезд.",
            "покупает хлеб и молоко.",
            "поёт в саду.",
        ),
    ),
    "sv": (
        ("Min syster", "Den gamle läraren", "Vår granne", "Den unga läkaren"),
        (
            "läser ett långt brev.",
            "dricker kaffe i köket.",
            "väntar på det sista tåget.",
            "köpte bröd och mjölk i går.",
            "sjunger i trädgården.",
        ),
    ),
}
SENTENCES = {
    language: [f"{subject} {rest}" for subject in subjects for rest in predicates]
    for language, (subjects, predicates) in _PARTS.items()
}


def digits(data, folder, numbers):
    """Extracts recordings of FSDD (8 kHz, one word each): dict from paths to words.

    Args:
        data: data folder; the archive is `speech/fsdd-recordings.tar`.
        folder: where to write the recordings.
        numbers: numbers of the recordings of each digit and speaker. 0 to 4 are the test split.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    with tarfile.open(data / "speech" / "fsdd-recordings.tar") as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            match = re.fullmatch(r"(?:.*/)?((\d)_\w+_(\d+)\.wav)", member.name)
            if match and int(match[3]) in numbers:
                path = folder / match[1]
                path.write_bytes(archive.extractfile(member).read())
                found[path] = WORDS[int(match[2])]
    return found


def spoken(folder):
    """Lets espeak-ng speak all sentences: dict from paths to language and text."""
    found = {}
    for language, texts in SENTENCES.items():
        for number, text in enumerate(texts):
            path = folder / f"{language}_{number}.wav"
            if not path.exists():
                subprocess.run(["espeak-ng", "-v", language, "-w", path, text], check=True)
            found[path] = language, text
    return found


def error_rate(found, wanted, languages):
    """Returns the word error rate of texts, after normalization; `None` if there are none."""
    sys.path.append(str(bench.ROOT / "examples"))
    from support.scores.word_errors import word_error_rate

    sides = [
        [normalised(*pair) for pair in zip(texts, languages, strict=True)]
        for texts in (found, wanted)
    ]
    return word_error_rate(*sides) if wanted else None


def normalised(text, language):
    """Lowercases text, removes punctuation, and spells out numbers."""
    from num2words import num2words

    text = re.sub(r"\d+", lambda match: num2words(int(match[0]), lang=language), text)
    return " ".join(re.sub(r"[^\w\s]|_", " ", text.lower()).split())
