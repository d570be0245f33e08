"""Tables of exports: equality, size and speed of artefacts, and Firefox' models."""

import re
import statistics

from markdown_tables import Table, table, tables


def named(report, part="rows"):
    """Returns the rows of a dict, each with its key as "name"."""
    return [{"name": name, **row} for name, row in report[part].items()]


def export_rows(report):
    """Yields Keras' row, and a row for each artefact."""
    yield {"artefact": "Keras", "mean": report["keras_bleu"]}
    for row in report["rows"]:
        bleu = row["bleu"]
        yield row | {"mean": statistics.mean(bleu), "lowest": min(bleu), "highest": max(bleu)}


EXPORT = Table(
    [
        ("artefact", "{artefact}"),
        ("MB", "{bytes:MB.2f}"),
        ("sentences that differ", "{differing}"),
        ("largest difference of a score", "{largest_difference:.1e}"),
        ("BLEU, mean", "{mean:.2f}"),
        ("lowest", "{lowest:.2f}"),
        ("highest", "{highest:.2f}"),
    ],
    export_rows,
    missing="",
)


def kinds(report):
    """Makes a row for each kind of task and a column for each format, then lists the failures."""
    rows = report["rows"]
    columns = list(dict.fromkeys(column for row in rows for column in row.get("columns", ())))
    cells, failures = [], []
    for row in rows:
        found = row.get("columns", {})
        cells.append([row["name"], *(kinds_cell(found.get(column), row) for column in columns)])
        reasons = {"all": row["fails"]} if "fails" in row else {}
        reasons |= {column: at["fails"] for column, at in found.items() if "fails" in at}
        for reason in dict.fromkeys(reasons.values()):  # one line for columns with one reason
            where = ", ".join(column for column in reasons if reasons[column] == reason)
            failures.append(f"- {row['name']}, {where}: {reason}")
    text = table(["kind of task", *columns], cells)
    return text + ("\n\nWhat fails:\n\n" + "\n".join(failures) if failures else "")


def kinds_cell(found, row):
    if "fails" in row or found and "fails" in found:
        return "fails"
    return "" if found is None else f"{found['error']:.0e}"


def not_compared(report):
    failures = [f"- {row['name']}: {row['fails']}" for row in report["rows"] if "fails" in row]
    return "Not compared:\n\n" + "\n".join(failures) if failures else ""


def of_batch(size):
    """Returns a function from a row to its ratio for a batch size."""
    return lambda row: f"{row['ratios'][size]:.2f}" if size in row.get("ratios", {}) else None


KINDS_SPEED = Table(
    [
        ("kind of task", lambda row: row["name"] + " *" * bool(row.get("plain without"))),
        ("nodes, plain", "{nodes[plain]}"),
        ("nodes, ours", "{nodes[ours]}"),
        ("batch of 1", of_batch("1")),
        ("batch of 32", of_batch("32")),
    ],
    note=not_compared,
    missing="",
)


def imported_rows(report):
    """Yields the rows of each direction: the engine, Keras, and the artefacts."""
    for direction, part in report["directions"].items():
        engine, counts = part["engine"], part["sentences"]
        size = sum(engine["bytes"].values())
        for also, kind in ((", shortlist", "shortlist"), ("", "no shortlist")):
            row = {"direction": direction, "what": f"engine{also}", "bytes": size}
            if also:
                row["equal"] = f"{engine['equal with and without']} of {counts['no shortlist']}"
            yield row | {"seconds a sentence": engine[f"seconds a sentence, {kind}"]}
        for also, kind in ((", shortlist", "shortlist"), ("", "no shortlist")):
            equal = f"{part['keras'][kind]} of {counts[kind]}"
            yield {"direction": direction, "what": f"Keras{also}", "equal": equal}
        for name in ("float32, shortlist", "float32", "int8, shortlist", "int8"):
            count = counts["shortlist" if name.endswith("shortlist") else "no shortlist"]
            row = {"direction": direction, "what": f"ONNX, {name}"}
            yield part[name] | row | {"equal": f"{part[name]['equal']} of {count}"}


IMPORTED = Table(
    [
        ("direction", "{direction}"),
        ("what", "{what}"),
        ("equal strings", "{equal}"),
        ("chrF", "{chrf beside the engine}"),
        ("MB", "{bytes:MB}"),
        ("ms a sentence", "{seconds a sentence:ms}"),
        ("in batches", "{seconds a sentence, in batches:ms}"),
    ],
    imported_rows,
)


def words_per_second(report):
    rows = [[name, f"{speed:,.0f}"] for name, speed in report["words a second"].items()]
    return table([f"newstest2014, {report['words']:,} words", "words/s/core"], rows)


def quantized_rows(report):
    for direction, files in report["directions"].items():
        for name, row in files.items():
            yield {"direction": direction, "name": name, "of": report["sentences"], **row}


def epochs_of_training(report):
    told = "{name}: one epoch of {sentences:,} sentences, {updates} updates, {minutes:.0f} minutes."
    return "\n\n".join(told.format(**row) for row in named(report, "training"))


QUANTIZED = Table(
    [
        ("direction", "{direction}"),
        ("file", "{name}"),
        ("equal strings", "{equal} of {of}"),
        ("MB", "{bytes:MB}"),
        ("ms a sentence", "{seconds:ms}"),
    ],
    quantized_rows,
    epochs_of_training,
)
STUDENT = Table(
    [
        ("model", "{name}"),
        ("chrF, Multi30k", "{test}"),
        ("Tatoeba", "{test_tatoeba}"),
        ("equal", "{test equal}, {test_tatoeba equal}"),
        ("MB", "{mb}"),
        ("gzip, MB", "{gzip mb}"),
        ("ms alone", "{ms alone}"),
        ("in batches", "{ms in batches}"),
    ],
    named,
    "{training[parameters]:,} parameters; {training[epochs]} epochs of {training[lines]:,} "
    "sentences, {training[minutes]:.0f} minutes.",
)


def terms_rows(report):
    names = {"free": "no terms", "terms": "`Terms`", "aligned": "in place of aligned words"}
    for title, part in report["sets"].items():
        for name, label in names.items():
            yield {"title": title, "label": label, **part[name]}


TERMS = Table(
    [
        ("terms", "{title}"),
        ("search", "{label}"),
        ("number", "{terms}"),
        ("written", "{present:.1%}"),
        ("whole words", "{whole words:.1%}"),
        ("both words", "{both words:.1%}"),
        ("BLEU", "{bleu}"),
        ("chrF", "{chrF}"),
        ("ms", "{ms}"),
        ("ms alone", "{ms alone}"),
    ],
    terms_rows,
    "Without terms, {terms, none passed[equal]} and {aligned, none passed[equal]} of {sentences} "
    "are equal.",
)


def valid_rows(report):
    """Yields a row for each pattern: the valid outputs of each engine, of all searches."""
    rows = report["valid"]
    for name in dict.fromkeys(row["pattern"] for row in rows):
        some = [row for row in rows if row["pattern"] == name]
        engines = {
            engine: ", ".join(str(row[engine]) for row in some)
            for engine in ("Keras", "ONNX Runtime", "LiteRT")
        }
        yield {"pattern": name, "least": some[0]["least"], **engines}


VALID = Table(
    [
        ("pattern", "{pattern}"),
        ("tokens of the shortest", "{least}"),
        *((engine, f"{{{engine}}}") for engine in ("Keras", "ONNX Runtime", "LiteRT")),
    ],
    valid_rows,
    "Valid outputs of {outputs}: greedy search, beam search, sampling.",
)
PATTERN_COSTS = Table(
    [
        ("vocabulary", "{vocabulary:,}"),
        ("compile, ms", "{compile_ms:.0f}"),
        ("states", "{states}"),
        ("classes", "{classes}"),
        ("MB", "{free_mb:.2f}"),
        ("MB with", "{pattern_mb:.2f}"),
        ("ms a token, alone", "{free_alone_ms:.2f}"),
        ("with", "{pattern_alone_ms:.2f}"),
        ("ms a step, 32 sentences", "{free_batch_ms:.1f}"),
        ("with", "{pattern_batch_ms:.1f}"),
    ],
    lambda report: report["costs"],
)

# Columns of the second table of engines: what tools make of `model.onnx`, run in ONNX Runtime.
TOOLS = ("onnxslim", "saved by ONNX Runtime", "quantize_dynamic", "convert_float_to_float16")


def engines(report):
    """Makes the table of engines and the table of tools, and lists their reasons below."""
    names = list(dict.fromkeys(name for row in report["rows"] for name in row.get("cells", ())))
    reasons = {}  # number and text of each kind of reason
    parts = []
    for columns in ([n for n in names if n not in TOOLS], [n for n in names if n in TOOLS]):
        rows = [
            [row["name"], *(engines_cell(row, name, reasons) for name in columns)]
            for row in report["rows"]
        ]
        parts.append(table(["model", *columns], [*rows, equal_rows(report, columns)]))
    notes = [f"{number}. {text}" for number, text in reasons.values()]
    return "\n\n".join([*parts, "Reasons, each with its first text:", "\n".join(notes)])


def equal_rows(report, columns):
    """Returns the last row of a table of engines: how many rows are equal."""
    states = [
        [row["cells"][name]["state"] for row in report["rows"] if name in row.get("cells", ())]
        for name in columns
    ]
    return ["**equal**", *(f"**{found.count('equal')} of {len(found)}**" for found in states)]


def engines_cell(row, name, reasons):
    """Returns a cell with the number of its reason. Reasons may differ in names and numbers."""
    cell = row["cells"].get(name) if "cells" in row else {"state": "fault", "reason": row["fails"]}
    if cell is None:
        return None
    if cell["state"] == "equal":
        return "equal"
    kind = re.sub(r"'[^']*'|\"[^\"]*\"|<[^>]*>|\S*[\d_/:]\S*", "", cell["reason"])[:24]
    key = name.partition(",")[0], kind, cell.get("reproduction")
    if key not in reasons:
        text = f"{key[0].strip('`')}: `{cell['reason'].replace('`', ' ')}`"
        if key[2]:
            text += f" [Reproduction](#{key[2].replace('_', '-')})."
        reasons[key] = len(reasons) + 1, text
    return f"{cell['state']} ({reasons[key][0]})"


TABLES = {
    "bergamot": IMPORTED,
    "bergamot-words": words_per_second,
    "engines": engines,
    "export": EXPORT,
    "kinds": kinds,
    "kinds-speed": KINDS_SPEED,
    "patterns": tables(VALID, PATTERN_COSTS),
    "quantization": QUANTIZED,
    "quantization-vnni": QUANTIZED,
    "student": STUDENT,
    "terms": TERMS,
}
