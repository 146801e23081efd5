"""Runs what people type, once counted without the package and once under ``areal-callbacks run``, and compares.

    python tests/stacks/run.py [--only trl] [--environments .venv-stacks] [--work FOLDER] [--jobs 2] [--write]

Each environment is made once, with a CPU build of torch and without what needs a GPU. Prints the table; ``--write``
also renews these rows of results.md beside this file. Exit code 1 if anything differs or did not run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from stacks.commands import STACKS, Stack  # noqa: E402
from stacks.environments import make_environment, version_of  # noqa: E402
from stacks.measure import Counts, count_with_us, count_without_us  # noqa: E402

_TURNS: defaultdict[str, Lock] = defaultdict(Lock)
TITLES = ("stack", "version", "processes", "tokens", "routed", "weights")


def compare(stack: Stack, environments: str, work: Path) -> tuple[str, ...]:
    """A row of the table."""
    environment = Path(f"{environments}-{stack.environment}").absolute()
    binaries = environment / "bin"
    inputs = make_inputs(stack.environment, binaries / "python", work)
    place = work / f"{stack.name.replace(' ', '-').replace(',', '')}-{stack.processes}"
    without = count_without_us(stack, place / "without", binaries, inputs)
    with_us = count_with_us(stack, place / "with", binaries, inputs)
    version = f"{stack.package} {version_of(environment, stack.package)}"
    return (f"`{stack.name}`", version, str(stack.processes), *judge(without, with_us))


def make_environments(stacks: Iterable[Stack], environments: str, work: Path) -> None:
    """Environments, and no inputs of an earlier run."""
    for name in dict.fromkeys(stack.environment for stack in stacks):
        make_environment(environments, name)
        shutil.rmtree(work / f"inputs-{name}", ignore_errors=True)


def make_inputs(name: str, python: Path, work: Path) -> Path:
    """The models and data of an environment, made by it once."""
    inputs = work / f"inputs-{name}"
    with _TURNS[name]:
        if not inputs.exists():
            subprocess.run([python, HERE / "inputs.py", inputs], check=True, capture_output=True)
    return inputs


def judge(without: Counts, with_us: Counts) -> tuple[str, str, str]:
    """What is equal, and the numbers of what is not."""
    if problem := without.problem or with_us.problem:
        return (problem, "-", "-")
    same = with_us.weights == without.weights and bool(with_us.weights)
    return (
        tell(with_us.tokens, without.tokens),
        tell(with_us.routed, without.routed) if without.routed or with_us.routed else "dense",
        "identical" if same else "differ",
    )


def tell(ours: object, theirs: object) -> str:
    shown = sum(map(sum, theirs)) if isinstance(theirs, list) else theirs
    return f"{shown} exact" if ours == theirs and theirs else f"{ours} for {theirs}"


def write_table(rows: Iterable[tuple[str, ...]]) -> str:
    lines = [TITLES, tuple("---" for _ in TITLES), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def renew_table(text: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A table with these rows in the places of older ones of the same command, in the order of the commands."""
    older = [tuple(line.strip("| ").split(" | ")) for line in text.splitlines()[2:]]
    known = {(row[0], row[2]): row for row in (*older, *rows)}
    order = [(f"`{stack.name}`", str(stack.processes)) for stack in STACKS]
    return write_table(known[key] for key in order if key in known)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Stacks whose name or environment contains this.")
    parser.add_argument("--environments", default=".venv-stacks")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "areal_callbacks_stacks"))
    parser.add_argument("--jobs", type=int, default=1, help="Commands that run at a time.")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    chosen = [stack for stack in STACKS if options.only in f"{stack.name} {stack.environment} {stack.processes}"]
    rows, results = [], HERE / "results.md"
    places = options.environments, options.work.absolute()
    make_environments(chosen, *places)
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda stack: compare(stack, *places), chosen):
            rows.append(row)
            print(write_table([row]).splitlines()[-1], flush=True)
            if options.write and row[5] != "-":
                results.write_text(renew_table(results.read_text(), [row]))
    print(write_table(rows))
    return int(any(" for " in row[3] + row[4] or row[5] != "identical" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
