"""A compact summary for a terminal or a log file."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TextIO

from tabulate import tabulate

from areal_callbacks.core.file_names import METRICS_FILE, REPORT_FILE, TENSORBOARD_FOLDER
from areal_callbacks.core.names import DEAD_EXPERTS, MAX_OVER_IDEAL_MAX, MAX_OVER_IDEAL_MEAN, WORST_LAYER
from areal_callbacks.writers.console_line import UNKNOWN

if TYPE_CHECKING:
    from areal_callbacks.core.expert_loads import LayerLoads
    from areal_callbacks.core.types import Export, Run

WIDTH = 80

_NEVER_MISSING = (
    "train_perf/tokens",
    "train_perf/tokens_per_second",
    "train_perf/estimated_flops_per_second",
    "train_perf/mfu",
)
"""Where training was measured but not this, one word says so."""
_FILES = (METRICS_FILE, REPORT_FILE, TENSORBOARD_FOLDER)
_WORST_LAYERS = 3
_MOST_DIGITS = 20
_MOST_ROWS = 20


class ConsoleWriter:
    """Prints the main numbers, the most imbalanced layers and where the files are, within 80 columns.

    Args:
        every_export: print at every export; otherwise once, at the end: the last export that held metrics.
        stream: where to print; None is ``sys.stdout`` at that time.
        closing: gives the last lines.
    """

    def __init__(
        self,
        *,
        every_export: bool = False,
        stream: TextIO | None = None,
        closing: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._every_export = every_export
        self._closing = closing
        self._stream = stream
        self._run: Run | None = None
        self._last: Export | None = None

    def open(self, run: Run) -> None:
        """Remember where the files are."""
        self._run = run

    def write(self, export: Export) -> None:
        """Keep the export for the end if it holds metrics; print it if every one is wanted."""
        if not (export.metrics or export.expert_loads):
            return
        self._last = export
        if self._every_export:
            self._print(summarise(export))

    def close(self) -> None:
        """Print the last export, unless every one was printed, and the files."""
        if self._last is None or self._run is None:
            return
        text = [] if self._every_export else [summarise(self._last)]
        lines = self._closing()
        found = ["\n".join(["Findings", *(f"  {line}" for line in lines)])] if lines else []
        self._print("\n\n".join([*text, _list_files(self._run), *found]))
        self._last = None

    def _print(self, text: str) -> None:
        print(f"\n{text}", file=self._stream or sys.stdout, flush=True)


def summarise(export: Export) -> str:
    """The highlights of an export and its most imbalanced layers as plain text of at most 80 columns.

    An export without any of the highlights shows its first metrics instead.
    """
    rows = list(_list_highlights(export.metrics)) or list(_list_first(export.metrics))
    parts = [f"AReaL metrics, step {export.step:,}"]
    if rows:
        table = tabulate(
            rows, tablefmt="plain", colalign=("left", "right"), disable_numparse=True, maxcolwidths=[58, None]
        )
        parts[0] += f"\n{table}"
    if export.expert_loads:
        parts.append(_tabulate_layers(export.expert_loads.worst(_WORST_LAYERS)))
    return "\n\n".join(parts)


def _list_highlights(metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for key, text in _HIGHLIGHTS.items():
        if key in _NEVER_MISSING and key not in metrics and "train_perf/seconds" in metrics:
            yield key, UNKNOWN
        elif key in metrics:
            value = float(metrics[key])
            shown = text(value) if math.isfinite(value) else str(value)
            yield key, shown if len(shown) <= _MOST_DIGITS else f"{value:.6g}"


def _list_first(metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    yield from ((key, f"{float(value):.6g}") for key, value in islice(metrics.items(), _MOST_ROWS))
    if len(metrics) > _MOST_ROWS:
        yield f"and {len(metrics) - _MOST_ROWS:,} more in {METRICS_FILE}", ""


def _tabulate_layers(layers: Iterable[LayerLoads]) -> str:
    rows = [_describe_layer(layer) for layer in layers]
    headers = ["most imbalanced layers", "max/ideal", "busiest expert", "load", "dead"]
    return tabulate(
        rows,
        headers=headers,
        tablefmt="simple",
        colalign=("left", *["right"] * 4),
        disable_numparse=True,
        maxcolwidths=[32, None, None, None, None],
    )


def _describe_layer(layer: LayerLoads) -> list[str]:
    percentages = layer.percentages()
    busiest = max(range(len(percentages)), key=percentages.__getitem__)
    ratio, load, dead = (
        _format_ratio(layer.max_over_ideal),
        f"{percentages[busiest]:.1f} %",
        _format_count(layer.dead_experts),
    )
    return [layer.prefix, ratio, str(busiest), load, dead]


def _list_files(run: Run) -> str:
    """Whole paths to copy; where they are longer than a line, the folder, wrapped but never cut, and the names."""
    names = [name for name in _FILES if (run.output_dir / name).exists()]
    lines = ["Files", *(f"  {run.output_dir / name}" for name in names)]
    if len(lines) == 1 or max(map(len, lines)) > WIDTH:
        folder = textwrap.wrap(str(run.output_dir), WIDTH - 2, break_on_hyphens=False)
        lines = ["Files in", *(f"  {line}" for line in folder), *(f"    {name}" for name in names)]
    return "\n".join(lines)


def _format_count(value: float) -> str:
    return f"{value:,.0f}"


def _format_ratio(value: float) -> str:
    return f"{value:.3f}"


def _format_small(value: float) -> str:
    return f"{value:.3g}"


def _format_percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _format_tokens_per_second(value: float) -> str:
    return f"{value:,.0f} tokens/s" if value >= 100 else f"{value:.3g} tokens/s"


def _format_seconds(value: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{_format_three_digits(value / size)} {unit}"
    return f"{_format_three_digits(value * 1e6)} us"


def _format_flops_per_second(value: float) -> str:
    for exponent, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if value >= 10**exponent:
            return f"{_format_three_digits(value / 10**exponent)} {prefix}FLOP/s"
    return f"{value:,.0f} FLOP/s"


def _format_three_digits(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


_HIGHLIGHTS: dict[str, Callable[[float], str]] = {
    "train_perf/tokens": _format_count,
    "train_perf/seconds": _format_seconds,
    "train_perf/tokens_per_second": _format_tokens_per_second,
    "train_perf/estimated_flops_per_second": _format_flops_per_second,
    "train_perf/mfu": _format_percent,
    "timeperf/optimizer_step": _format_seconds,
    "train_perf/total_tokens": _format_count,
    "train_perf/total_seconds": _format_seconds,
    "train_perf/cumulative_tokens_per_second": _format_tokens_per_second,
    MAX_OVER_IDEAL_MAX: _format_ratio,
    MAX_OVER_IDEAL_MEAN: _format_ratio,
    WORST_LAYER: _format_count,
    DEAD_EXPERTS: _format_count,
    "ppo_actor/train_infer/logp_abs_diff/avg": _format_small,
    "ppo_actor/train_infer/kl_k1": _format_small,
    "ppo_actor/train_infer/kl_k3": _format_small,
    "ppo_actor/train_infer/ratio_outside_2": _format_percent,
    "ppo_actor/train_infer/nonfinite_logp_fraction": _format_percent,
    "ppo_actor/advantage_positive_fraction": _format_percent,
    "ppo_actor/update/version_stats/sample_staleness_theta_avg": _format_small,
    "ppo_actor/update/version_stats/stale_token_fraction": _format_percent,
}
