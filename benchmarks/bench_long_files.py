"""What the files of a long run of a large model cost: a mixture of 96 layers and 512 experts that exports every step.

    python benchmarks/bench_long_files.py [steps] [layers] [experts]

Every step goes through the real writer: a hundred scalars, the ratios of the layers, and Poisson counts of four million
tokens of top-8 around drifting loads, of which there are 50 sets. Then the file is read as a user reads it, unpacked as
the report reads it, and the report is built. Seconds are of the CPU; peak memory is that of this process so far, with
170 MB of torch and NumPy.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from tabulate import tabulate

from areal_callbacks.core.expert_loads import ExpertLoads, LayerLoads
from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.core.types import Export, Run
from areal_callbacks.report import build_report
from areal_callbacks.report.history import read_history
from areal_callbacks.writers.jsonl import JsonlWriter, read_metrics

T = TypeVar("T")

STEPS, LAYERS, EXPERTS, SCALARS, LOADS, ROUTED = 10_000, 96, 512, 100, 50, 32_000_000


def make_loads(layers: int, experts: int) -> list[ExpertLoads]:
    """Sets of counts that drift apart."""
    source = np.random.default_rng(0)
    logits = source.normal(0, 0.3, (layers, experts))
    counts = [source.poisson(ROUTED / experts * np.exp(logits * (1 + n / LOADS))) for n in range(LOADS)]
    return [
        ExpertLoads(tuple(LayerLoads("", n, torch.from_numpy(row)) for n, row in enumerate(rows))) for rows in counts
    ]


def write_run(folder: Path, steps: int, loads: list[ExpertLoads]) -> None:
    """All steps through the writer of a session."""
    source, ratios = np.random.default_rng(1), [each.max_over_ideal() for each in loads]
    writer = JsonlWriter()
    writer.open(Run(folder, {}))
    for step in range(1, steps + 1):
        scalars = {f"section/metric_{n}": value for n, value in enumerate(source.normal(size=SCALARS).tolist())}
        place = (step * LOADS // (steps + 1) + step % 2) % LOADS
        writer.write(Export(step, {**scalars, **ratios[place]}, loads[place], time=60.0 * step))
    writer.close()


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What it returns, and its seconds of CPU."""
    start = time.process_time()
    return call(), time.process_time() - start


def peak() -> float:
    """Megabytes that this process has needed so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main(steps: int, layers: int, experts: int) -> None:
    loads = make_loads(layers, experts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows: list[tuple[str, float, float, float]] = []

        def measure(what: str, call: Callable[[], object], file: str) -> None:
            _, seconds = timed(call)
            rows.append((what, seconds, (folder / file).stat().st_size / 1e6, peak()))
            print(*rows[-1], file=sys.stderr, flush=True)

        measure("write", lambda: write_run(folder, steps, loads), METRICS_FILE)
        measure("read for the report", lambda: read_history(folder / METRICS_FILE, "run"), METRICS_FILE)
        measure("report", lambda: build_report([folder], folder / "report.html"), "report.html")
        measure("read all, unpacked", lambda: sum(1 for _ in read_metrics(folder / METRICS_FILE)), METRICS_FILE)
    print(
        f"{steps:,} steps, {layers} layers of {experts} experts; a step is written in {rows[0][1] / steps * 1e3:.1f} ms"
    )
    headers = ("", "seconds", "file MB", "peak MB")
    print(tabulate(rows, headers, tablefmt="github", floatfmt=("", ".1f", ".2f", ".0f")))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*(*map(int, sys.argv[1:]), *(STEPS, LAYERS, EXPERTS)[len(sys.argv) - 1 :]))
