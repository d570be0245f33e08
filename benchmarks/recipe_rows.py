"""Tables of the training recipes."""

import statistics

import workers

HEADS = ["recipe", "seeds", "precision", "valid", "test.2016", "test.2017", "equal strings"]
HEADS += ["epochs", "minutes"]


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


def tables(report):
    """Returns the scores of each recipe, and the comparisons of recipes."""
    rows = []
    for recipe, names in by_seed(report["runs"]).items():
        runs = [report["runs"][name] for name in names.values()]
        for precision in runs[0]["bleu"]:
            scores = [run["bleu"][precision] for run in runs]
            cells = [spread([score[part] for score in scores]) for part in scores[0]]
            equal = [run["equal"][precision]["test.2016"] / 10 for run in runs]  # of 1,000
            cells.append(f"{spread(equal)} %")
            costs = [runs[0]["epochs"], f"{statistics.mean(run['minutes'] for run in runs):.0f}"]
            rows.append([recipe, ", ".join(names), precision, *cells, *costs])
    parts = [workers.table(HEADS, rows)]
    if report["compared"]:
        heads = ["recipes", "seed", "set", "difference in BLEU", "p"]
        compared = [
            [
                " and ".join(row["recipes"]),
                row["seed"],
                row["set"],
                f"{row['gain']:+.2f}",
                f"{row['p']:.3f}",
            ]
            for row in report["compared"]
        ]
        parts.append(workers.table(heads, compared))
    return "\n\n".join(parts)
