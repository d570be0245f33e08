"""Tables of `service.py`: throughput, times under load, overload, equality."""

import statistics

import workers


def tables(report):
    """Returns the tables of a report."""
    found = [
        throughput_table(report["throughput"], report["lines"] * report["times"]),
        load_table(report["half load"], report["overload"]),
        equality_table(report.get("equality", [])),
    ]
    if "beside Ray" in report:
        found.append(ray_table(report["start seconds"], report["beside Ray"]))
    return "\n\n".join(found)


def ray_table(start, report):
    """Compares the service in one process with Ray: start, speed with 128 clients, memory."""
    ray = "a replica on Ray"
    starts = {"one process": start, ray: report["start seconds"]}
    rows = [
        [
            name,
            f"{starts[name]:.1f}",
            f"{statistics.median(row[name] for row in report['lines/s']):.1f}",
            f"{statistics.median(row[name] / row[ray] for row in report['lines/s']):.2f}",
            f"{1e3 * statistics.median(row[name] for row in report['cpu']):.1f}",
            f"{report['megabytes'][name]:.0f}",
        ]
        for name in starts
    ]
    head = ["service", "s to start", "lines/s, 128 clients", "of Ray's in the same round"]
    return workers.table([*head, "processor ms a line", "MB in all"], rows)


def throughput_table(rounds, lines):
    heads = ["requests", "lines/s", "Translator's", "of `Translator`", "by processor time"]
    heads += ["and clients", "loads"]
    loads = ", ".join(f"{row['load']:.0f}" for row in rounds)
    rows = []
    for name in rounds[0]:
        if name in ("load", "translator"):
            continue
        ratios = [
            statistics.median(ratio(row["translator"], row[name]) for row in rounds)
            for ratio in (_of_seconds, _of_cpu, _of_cpu_and_clients)
        ]
        speeds = [
            lines / statistics.median(row[part]["seconds"] for row in rounds)
            for part in (name, "translator")
        ]
        numbers = [f"{speed:.1f}" for speed in speeds] + [f"{ratio:.2f}" for ratio in ratios]
        rows.append([name, *numbers, loads])
    return workers.table(heads, rows)


def _of_seconds(whole, service):
    return whole["seconds"] / service["seconds"]


def _of_cpu(whole, service):
    return whole["cpu"] / service["cpu"]


def _of_cpu_and_clients(whole, service):
    return whole["cpu"] / (service["cpu"] + service["clients"])


def load_table(rounds, over):
    """Compares half load with single requests in each round, and shows the overload."""
    heads = ["load", "requests/s", "p50 ms", "p95 ms", "p95, of one request's", "answers"]
    rows = []
    for number, row in enumerate(rounds, 1):
        rows.append([f"round {number}: one request at a time", "", *_times(row["single"]), "", ""])
        ratio = f"{p95_ratio(row):.1f}"
        half = [f"{row['rate']:.0f}", *_times(row["half"]), ratio, _statuses(row["statuses"])]
        rows.append(["half of the full speed", *half])
    ratio = f"{statistics.median(map(p95_ratio, rounds)):.1f}"
    rows.append(["half of the full speed, median", "", "", "", ratio, ""])
    title = f"three times the full speed, {over['seconds']:.0f} s"
    rows.append([title, f"{over['rate']:.0f}", "", "", "", _statuses(over["statuses"])])
    memory = ", ".join(
        f"{name} {over['megabytes before'][name]:.0f} MB before and "
        f"{over['megabytes after'][name]:.0f} MB after"
        for name in over["megabytes before"]
    )
    speed = [over[f"lines/s {when}"] for when in ("before", "after")]
    speeds = f"{speed[0]:.1f} lines/s before and {speed[1]:.1f} after"
    spells = [row["spells"] for row in rounds]
    most, usual = (
        ", ".join(f"{one[which]:.2f}" for one in spells) for which in ("slowest", "median")
    )
    return (
        f"{workers.table(heads, rows)}\n\nThe same line, again and again for 20 s before each "
        f"round, beside the idle service: the slowest half second took {most} times as long as the "
        f"fastest, the median one {usual}.\n\nThe overload: {memory}; {speeds}."
    )


def p95_ratio(row):
    """Returns the p95 at half of the full speed over the p95 of single requests."""
    return row["half"]["p95"] / row["single"]["p95"]


def _times(found):
    return [f"{found[name]:.0f}" for name in ("p50", "p95")]


def _statuses(counts):
    return ", ".join(
        f"{count:,} {name.removeprefix('StatusCode.')}" for name, count in sorted(counts.items())
    )


def equality_table(rows):
    heads = ["client", "at a time", "lines a request", "differing", "lines"]
    return workers.table(heads, [[row[name] for name in _EQUALITY] for row in rows])


_EQUALITY = ("client", "concurrency", "lines a request", "differing", "lines")
