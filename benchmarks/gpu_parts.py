"""Parts of `gpu.py` in separate processes; this script runs one part.

A part imports only the frameworks that it needs, so serving runs without any.
"""

import argparse
from pathlib import Path

import workers
from workers import Worker

SCRIPT = Path(__file__)


def call(args, part, backend=None, **task):
    """Runs one part in a process; returns its facts."""
    task |= dict(part=part, device=args.device, threads=args.threads, seed=args.seed)
    environment = workers.environment(args.device, args.threads, backend, args.packages)
    with Worker(SCRIPT, task, environment) as worker:
        return worker.facts


def set_up(task):
    """Returns facts of a part, and its function for requests or `None`; see `workers.answer`."""
    part = task["part"]
    if part == "serving":
        from gpu_engines import serving

        return serving(task)
    if part == "correctness":
        from gpu_correctness import correctness as run
    elif part == "make":
        from gpu_models import make as run
    else:
        from gpu_replicas import replicas as run
    return run(task), None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", required=True, help="a task as JSON")
    workers.answer(set_up, parser.parse_args().worker)
