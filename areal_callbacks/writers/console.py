"""A compact summary for a terminal or a log file."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TextIO

from tabulate import tabulate

if TYPE_CHECKING:
    from areal_callbacks.core.expert_loads import LayerLoads
    from areal_callbacks.core.types import Export, Run

WIDTH = 80

_FILES = ("metrics.jsonl", "report.html", "tensorboard")
_WORST_LAYERS = 3
_MOST_DIGITS = 20


class ConsoleWriter:
    """Prints the numbers that matter, the most imbalanced layers and where the files are, within 80 columns.

    Args:
        every_export: print at every export; otherwise once, at the end: the last export that held metrics.
        stream: where to print; None is ``sys.stdout`` at that time.
    """

    def __init__(self, *, every_export: bool = False, stream: TextIO | None = None) -> None:
        self._every_export = every_export
        self._stream = stream
        self._run: Run | None = None
        self._last: Export | None = None

    def open(self, run: Run) -> None:
        """Remember where the files are."""
        self._run = run

    def write(self, export: Export) -> None:
        """Keep the export for the end if it holds metrics; print it if every one is wanted."""
        if not export.metrics:
            return
        self._last = export
        if self._every_export:
            self._print(summary(export))

    def close(self) -> None:
        """Print the last export, unless it is on the screen already, and the files."""
        if self._last is None or self._run is None:
            return
        text = [] if self._every_export else [summary(self._last)]
        self._print("\n\n".join([*text, _files(self._run)]))
        self._last = None

    def _print(self, text: str) -> None:
        print(f"\n{text}", file=self._stream or sys.stdout, flush=True)


def summary(export: Export) -> str:
    """The highlights of an export and its most imbalanced layers as plain text of at most 80 columns."""
    rows = list(_highlights(export.metrics))
    parts = [f"AReaL metrics, step {export.step:,}"]
    if rows:
        table = tabulate(
            rows, tablefmt="plain", colalign=("left", "right"), disable_numparse=True, maxcolwidths=[58, None]
        )
        parts[0] += f"\n{table}"
    if export.expert_loads:
        parts.append(_worst_layers(export.expert_loads.worst(_WORST_LAYERS)))
    return "\n\n".join(parts)


def _highlights(metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for key, text in _HIGHLIGHTS.items():
        if key in metrics:
            value = float(metrics[key])
            shown = text(value) if math.isfinite(value) else str(value)
            yield key, shown if len(shown) <= _MOST_DIGITS else f"{value:.6g}"


def _worst_layers(layers: Iterable[LayerLoads]) -> str:
    rows = [_layer_row(layer) for layer in layers]
    headers = ["most imbalanced layers", "max/ideal", "busiest expert", "load", "dead"]
    return tabulate(
        rows,
        headers=headers,
        tablefmt="simple",
        colalign=("left", *["right"] * 4),
        disable_numparse=True,
        maxcolwidths=[32, None, None, None, None],
    )


def _layer_row(layer: LayerLoads) -> list[str]:
    percentages = layer.percentages()
    busiest = max(range(len(percentages)), key=percentages.__getitem__)
    ratio, load, dead = _ratio(layer.max_over_ideal), f"{percentages[busiest]:.1f} %", _count(layer.dead_experts)
    return [layer.prefix, ratio, str(busiest), load, dead]


def _files(run: Run) -> str:
    """Whole paths to copy; where they are too long, the folder, broken over lines but never cut, and the names."""
    names = [name for name in _FILES if (run.output_dir / name).exists()]
    lines = ["Files", *(f"  {run.output_dir / name}" for name in names)]
    if len(lines) == 1 or max(map(len, lines)) > WIDTH:
        folder = textwrap.wrap(str(run.output_dir), WIDTH - 2, break_on_hyphens=False)
        lines = ["Files in", *(f"  {line}" for line in folder), *(f"    {name}" for name in names)]
    return "\n".join(lines)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def _small(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _tokens_per_second(value: float) -> str:
    return f"{value:,.0f} tokens/s" if value >= 100 else f"{value:.3g} tokens/s"


def _seconds(value: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{_three_digits(value * 1e6)} us"


def _flops_per_second(value: float) -> str:
    for exponent, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if value >= 10**exponent:
            return f"{_three_digits(value / 10**exponent)} {prefix}FLOP/s"
    return f"{value:,.0f} FLOP/s"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


_HIGHLIGHTS: dict[str, Callable[[float], str]] = {
    "train_perf/tokens": _count,
    "train_perf/seconds": _seconds,
    "train_perf/tokens_per_second": _tokens_per_second,
    "train_perf/estimated_flops_per_second": _flops_per_second,
    "train_perf/mfu": _percent,
    "timeperf/optimizer_step": _seconds,
    "train_perf/total_tokens": _count,
    "train_perf/total_seconds": _seconds,
    "train_perf/cumulative_tokens_per_second": _tokens_per_second,
    "moe_balance/max_over_ideal_max": _ratio,
    "moe_balance/max_over_ideal_mean": _ratio,
    "moe_balance/worst_layer": _count,
    "moe_balance/dead_experts": _count,
    "ppo_actor/train_infer/logp_abs_diff/avg": _small,
    "ppo_actor/train_infer/kl_k1": _small,
    "ppo_actor/train_infer/kl_k3": _small,
    "ppo_actor/train_infer/ratio_outside_2": _percent,
    "ppo_actor/train_infer/nonfinite_logp_fraction": _percent,
    "ppo_actor/advantage_positive_fraction": _percent,
    "ppo_actor/update/version_stats/sample_staleness_theta_avg": _small,
    "ppo_actor/update/version_stats/stale_token_fraction": _percent,
}
