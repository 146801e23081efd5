"""False findings in healthy runs, and how soon sick ones are found.

    python benchmarks/bench_findings.py [RUNS]

Healthy runs of 200 exports are simulated (dense and with experts, supervised and with a policy), and as many of every
sickness, which begins somewhere between the 60th and the 110th export. Prints the tables of ``benchmarks/results.md``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.sick_runs import NEEDS_EXPERTS, NEEDS_POLICY, SICKNESSES
from support.simulated_runs import EVERY, Simulation

from areal_callbacks.findings import find

KINDS = [(moe, policy) for moe in (False, True) for policy in (False, True)]


def count_false(runs: int) -> tuple[Counter[str], float]:
    """Rule → findings in healthy runs, and the mean milliseconds to judge one."""
    found: Counter[str] = Counter()
    seconds = 0.0
    for seed in range(runs):
        moe, policy = KINDS[seed % len(KINDS)]
        history = Simulation(seed, moe=moe, policy=policy).history()
        began = time.perf_counter()
        findings = find(history)
        seconds += time.perf_counter() - began
        found.update(finding.rule for finding in findings)
    return found, 1000 * seconds / runs


def measure_delays(rule: str, runs: int) -> list[float]:
    """Exports from the onset to the finding, infinity where there is none."""
    sicken, _ = SICKNESSES[rule]
    delays = []
    for seed in range(runs):
        policy = rule in NEEDS_POLICY
        run = Simulation(10_000 + seed, moe=rule in NEEDS_EXPERTS, policy=policy)
        onset = int(run.random.integers(60, 110))
        sicken(run, onset)
        steps = [one.found_step for one in find(run.history()) if one.rule == rule]
        delays.append(min(steps, default=float("inf")) / EVERY - onset)
    return delays


def main(runs: int) -> None:
    false, milliseconds = count_false(runs)
    print(f"{runs} healthy runs of 200 exports: {false.total()} findings {dict(false)}; {milliseconds:.1f} ms a run\n")
    print("| rule | false findings | found | median exports | most exports | stated |\n|---|---|---|---|---|---|")
    for rule, (_, stated) in SICKNESSES.items():
        delays = measure_delays(rule, max(1, runs // 10))
        found = [delay for delay in delays if delay < float("inf")]
        middle, most = (statistics.median(found), max(found)) if found else (0, 0)
        print(f"| {rule} | {false[rule]} | {len(found)} of {len(delays)} | {middle:.0f} | {most:.0f} | {stated} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
