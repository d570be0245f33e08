"""The tables of the benchmarks, by name: columns, rows and notes of each report.

The pages show them below `<!-- NAME -->`; the scripts print them. A table is a function from a
report to Markdown, mostly a `Table`. `export_columns.py` has the columns of exports,
`engine_columns.py` the speed of engines, `service_columns.py` services, `speech_columns.py` speech.
"""

import statistics

import archive_columns
import engine_columns
import export_columns
import service_columns
import speech_columns
from markdown_tables import Table, table, tables

PUBLISHED = {"test.2016": ("41.02", "41.96")}  # text only; with images (Revisit-MMT)


# Quality.


def quality(report):
    """Makes the table of a trained model, and facts about its training."""
    heads = ["set", "BLEU"]
    if PUBLISHED.keys() & report["scores"].keys():
        heads += ["published, text only", "published, with images"]
    chosen = report["chosen_on_validation"]
    rows = [
        [test, f"{score['bleu']:.2f}", *PUBLISHED.get(test, ("", ""))][: len(heads)]
        for test, score in {"valid": chosen, **report["scores"]}.items()
    ]
    facts = [
        f"{report['epochs']} epochs in {report['minutes']:.0f} minutes on the {report['device']}",
        f"average of epochs {chosen['epochs'][0]}-{chosen['epochs'][-1]} and length penalty "
        f"{chosen['length_penalty']}, both chosen on valid",
        f"{report['parameters']:,} parameters",
        f"seed {report['seed']}",
    ]
    if report["tokens_per_second"]:
        facts.insert(1, f"{report['tokens_per_second']:,.0f} source + target tokens/s")
    return f"{table(heads, rows)}\n\n{'; '.join(facts)}."


def by_seed(runs):
    """Returns the names of recipes, each with a dict from seed to the name of its run."""
    recipes = {}
    for name in sorted(runs):
        recipe, _, seed = name.rpartition("-")
        recipes.setdefault(recipe, {})[seed] = name
    return recipes


def spread(numbers):
    """Returns the mean, with the smallest and the greatest number of several seeds."""
    mean = f"{statistics.mean(numbers):.2f}"
    return mean if len(numbers) == 1 else f"{mean} ({min(numbers):.2f} to {max(numbers):.2f})"


def recipe_rows(report):
    """Yields a row for each recipe and precision, with the scores of all seeds."""
    for recipe, names in by_seed(report["runs"]).items():
        runs = [report["runs"][name] for name in names.values()]
        minutes = statistics.mean(run["minutes"] for run in runs)
        shared = {"recipe": recipe, "seeds": ", ".join(names), "epochs": runs[0]["epochs"]}
        for precision in runs[0]["bleu"]:
            scores = [run["bleu"][precision] for run in runs]
            equal = [run["equal"][precision]["test.2016"] / 10 for run in runs]  # of 1,000
            parts = [spread([score[part] for score in scores]) for part in scores[0]]
            row = {"precision": precision, "equal": spread(equal), "minutes": minutes}
            yield shared | row | {"scores": parts}


RECIPES = Table(
    [
        ("recipe", "{recipe}"),
        ("seeds", "{seeds}"),
        ("precision", "{precision}"),
        ("valid", "{scores[0]}"),
        ("test.2016", "{scores[1]}"),
        ("test.2017", "{scores[2]}"),
        ("equal strings", "{equal} %"),
        ("epochs", "{epochs}"),
        ("minutes", "{minutes:.0f}"),
    ],
    recipe_rows,
)
COMPARED = Table(
    [
        ("recipes", lambda row: " and ".join(row["recipes"])),
        ("seed", "{seed}"),
        ("set", "{set}"),
        ("difference in BLEU", "{gain:+.2f}"),
        ("p", "{p:.3f}"),
    ],
    lambda report: report["compared"],
)


def recipes(report):
    """Makes the scores of each recipe, and the comparisons of recipes, if there are any."""
    return tables(RECIPES, *[COMPARED] * bool(report["compared"]))(report)


def little(report):
    """Makes a row for each recipe: the share of right outputs for each task, and of each seed."""
    runs = report["runs"]
    tasks, names = ([*dict.fromkeys(row[key] for row in runs)] for key in ("task", "recipe"))

    def cell(task, recipe):
        some = [row for row in runs if (row["task"], row["recipe"]) == (task, recipe)]
        shares = [row["right"] / row["of"] for row in sorted(some, key=lambda row: row["seed"])]
        seeds = ", ".join(f"{share:.1%}" for share in shares)
        return f"{statistics.mean(shares):.1%} ({seeds})" if shares else ""

    rows = [[recipe, *(cell(task, recipe) for task in tasks)] for recipe in names]
    return table(["recipe", *tasks], rows)


PRETRAINED = Table(
    [
        ("engine", "{name}"),
        ("largest relative difference", "{largest_relative_difference:.1e}"),
        ("same first ten", "{same_first_10:.1%}"),
        ("same order of all", "{same_order_of_all:.1%}"),
    ],
    lambda report: [
        {"name": name, **report[name]}
        for name in ("keras", "onnxruntime", "transformers_one_by_one")
    ],
    "{same_ids:.1%} of the texts have the same ids.",
)
FAMILIES = Table(
    [
        ("family", "{family}"),
        ("weights", "{weights}"),
        ("forward pass", "{difference:.0e}"),
        ("searches", "{same_searches:.0%}"),
        ("lines", "{same_lines:.1%}"),
        ("MB", "{megabytes:.1f}"),
        ("ms", "{ms:.1f}"),
        ("ms, PyTorch", "{torch_ms:.1f}"),
        ("MB, int8", "{int8_megabytes:.1f}"),
        ("ms, int8", "{int8_ms:.1f}"),
        ("int8 equal", "{int8_agreement:.1%}"),
    ],
    lambda report: report["families"],
    lambda report: "\n".join(
        [
            "Similarities of the sentences in the README of Sentence-Transformers: "
            f"{', '.join(f'{value:.4f}' for value in row['similarities'])}."
            for row in report["families"]
            if "similarities" in row
        ]
        + [
            f"{row['family']}: the machine was shared, with {row['load']:.0f} other programs at "
            "work, so its times are too long."
            for row in report["families"]
            if row.get("load", 0) >= 2
        ]
    ),
)
FINE_TUNING = Table(
    [
        ("task", "{set}"),
        ("method", "{way}"),
        ("texts", "{count:,}"),
        ("trained weights", "{trained:,}"),
        ("epoch", "{epoch}"),
        ("test", "{score:.1%}"),
        ("MB", "{megabytes:.1f}"),
        ("processor minutes", "{minutes:.1f}"),
    ],
    lambda report: sorted(report["runs"], key=lambda run: run["set"]),
)
FIRST_EXAMPLE = Table([("seed", "{seed}"), ("right", "{right:.2%}"), ("margin", "{margin}")])

TABLES = {
    "families": FAMILIES,
    "fine-tuning": FINE_TUNING,
    "first-example": FIRST_EXAMPLE,
    "little": little,
    "pretrained": PRETRAINED,
    "quality": quality,
    "quality-raw": quality,
    "recipes": recipes,
    **archive_columns.TABLES,
    **engine_columns.TABLES,
    **export_columns.TABLES,
    **service_columns.TABLES,
    **speech_columns.TABLES,
}
