"""Table of the recipes for a few thousand pairs."""

import statistics

import workers


def table(report):
    """Returns a row for each recipe: the share of right outputs for each task, and of each seed."""
    tasks, recipes = (
        [*dict.fromkeys(row[key] for row in report["runs"])] for key in ("task", "recipe")
    )
    rows = []
    for recipe in recipes:
        cells = []
        for task in tasks:
            some = [row for row in report["runs"] if (row["task"], row["recipe"]) == (task, recipe)]
            shares = [row["right"] / row["of"] for row in sorted(some, key=lambda row: row["seed"])]
            seeds = ", ".join(f"{share:.1%}" for share in shares)
            cells.append(f"{statistics.mean(shares):.1%} ({seeds})" if shares else "")
        rows.append([recipe, *cells])
    return workers.table(["recipe", *tasks], rows)
