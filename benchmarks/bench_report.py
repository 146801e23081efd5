"""What the HTML report costs: seconds to build, size, and milliseconds until a headless Chromium shows it.

    python benchmarks/bench_report.py

The runs have 48 layers of 128 experts with Poisson counts around drifting loads, and about a hundred scalars. Needs
chromium and chromedriver.
"""

from __future__ import annotations

import base64
import json
import resource
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.browser import Browser
from support.report_runs import typical_metrics

from areal_callbacks.report import build_report

LAYERS, EXPERTS, EXTRA_SCALARS = 48, 128, 20
LOADS = 50


def write_run(folder: Path, steps: int) -> Path:
    """Line by line, with one of ``LOADS`` sets of counts at every step."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 0.3, (LAYERS, EXPERTS))
    counts = [generator.poisson(4096 * np.exp(logits * (1 + place / LOADS))) for place in range(LOADS)]
    loads = [base64.b64encode(zlib.compress(one.astype("<u4").tobytes())).decode() for one in counts]
    ratios = [(one.max(axis=1) / one.mean(axis=1)).tolist() for one in counts]
    shape: dict[str, Any] = {"stack": "", "layers": list(range(LAYERS)), "experts": EXPERTS, "dtype": "uint32"}
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            place = step * LOADS // (steps + 1)
            metrics = typical_metrics(step, steps)
            metrics |= {
                f"extra/{name}": float(value) for name, value in enumerate(generator.normal(size=EXTRA_SCALARS))
            }
            metrics |= {f"moe_balance/layer_{layer}/max_over_ideal": r for layer, r in enumerate(ratios[place])}
            file.write(json.dumps({"kind": "metrics", "step": step, "time": 60.0 * step, "metrics": metrics}) + "\n")
            file.write(
                json.dumps({"kind": "expert_loads", "step": step, **shape, "counts": loads[step % LOADS]}) + "\n"
            )
    return folder / "metrics.jsonl"


def measure(steps: int, browser: Browser, rounds: int = 5) -> list[str]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write_run(folder, steps)
        begin = time.process_time()
        report = build_report([folder], folder / "report.html")
        built = time.process_time() - begin
        paints, drawn = [], []
        for _ in range(rounds):
            browser.open(report)
            paints.append(browser.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            drawn.append(browser.run("return performance.getEntriesByName('report-drawn')[0].startTime"))
        sizes = [f"{path.stat().st_size / 1e6:.2f} MB" for path in (source, report)]
        times = [f"{built:.1f} s", f"{min(paints):.0f} ms", f"{min(drawn):.0f} ms"]
        return [f"{steps:,}", *sizes, *times, f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB"]


def main() -> None:
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        try:
            rows = [measure(steps, browser) for steps in (400, 20_000)]
        finally:
            browser.close()
    heads = ["steps", "metrics.jsonl", "report.html", "build (CPU)", "first paint", "all drawn", "peak memory"]
    print(tabulate(rows, heads, tablefmt="github", disable_numparse=True, colalign=("right",) * len(heads)))


if __name__ == "__main__":
    main()
