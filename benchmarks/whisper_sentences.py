"""Twenty sentences in each of ten languages, for espeak-ng to speak: four subjects, five verbs."""

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
