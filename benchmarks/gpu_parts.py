"""What `gpu.py` does in processes of its own; this script starts one part of it.

A part imports the frameworks that it needs, so the engine that serves runs where there are none.
"""

import argparse
from pathlib import Path

import workers
from workers import Worker

SCRIPT = Path(__file__)


def call(args, part, backend=None, **task):
    """The facts that one part's process gives."""
    task |= dict(part=part, device=args.device, threads=args.threads, seed=args.seed)
    environment = workers.environment(args.device, args.threads, backend, args.packages)
    with Worker(SCRIPT, task, environment) as worker:
        return worker.facts


def set_up(task):
    """The facts of a part, and its function for requests where it has one; see `workers.answer`."""
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
