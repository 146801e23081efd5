"""A W&B workspace with the charts of this package, built by W&B's own library and saved by one call.

Only saving needs a server: the workspace can be looked at as JSON before.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

NAME = "AReaL metrics"
TABLE = "moe_balance/expert_loads"
_TABLE_FIELDS = ("layer", "expert", "tokens", "load_percent", "stack")
_PER_ROW = 3


@dataclass(frozen=True)
class Line:
    """A line chart: the series ``keys``, and those whose names match ``pattern``; ``log``: a logarithmic axis."""

    title: str
    keys: tuple[str, ...] = ()
    pattern: str = ""
    log: bool = False


@dataclass(frozen=True)
class Custom:
    """A custom chart of this package over the table of expert loads, at every logged step."""

    chart: str
    strings: tuple[tuple[str, str], ...] = ()


SECTIONS: dict[str, tuple[Line | Custom, ...]] = {
    "Learning": (
        Line("Loss", pattern=r"(^|.*[/_ ])loss$"),
        Line("Reward", pattern=r"(^|.*[/_])rewards?(/(avg|mean))?$"),
        Line("Gradient norm", pattern=r".*grad(ient)?_norm$"),
    ),
    "Speed": (
        Line("Throughput", ("train_perf/tokens_per_second", "train_perf/cumulative_tokens_per_second")),
        Line("Estimated FLOP/s", ("train_perf/estimated_flops_per_second",)),
        Line("MFU and goodput", ("train_perf/mfu", "train_perf/goodput")),
        Line("Seconds", ("train_perf/seconds", "train_perf/seconds_mean", "train_perf/data_wait_seconds")),
        Line("Recorded times", pattern=r"timeperf/.*"),
        Line("Device memory", ("device_memory/peak_allocated_gib", "device_memory/peak_reserved_gib")),
    ),
    "Experts": (
        Line(
            "Imbalance over the layers",
            tuple(f"moe_balance/max_over_ideal_{name}" for name in ("max", "p90", "p50", "mean")),
        ),
        Line("Imbalance of every layer", pattern=r"moe_balance/.*layer_\d+/max_over_ideal"),
        Line("Starved and dead experts", ("moe_balance/starved_experts", "moe_balance/dead_experts")),
        Custom("moe_layer_expert_heatmap"),
        Custom("moe_single_layer_bar", strings=(("layer", "0"),)),
    ),
    "Policy": (
        Line("Train/infer tails", pattern=r"(.*/)?train_infer/ratio_outside_[\d.]+", log=True),
        Line("Train/infer divergence", pattern=r"(.*/)?train_infer/kl_k\d"),
        Line("Staleness", pattern=r"(.*/)?version_stats/sample_staleness_(theta|proximal)_(avg|max)"),
    ),
}
"""Title → charts. The names are those of ``docs/metrics.md``."""


def make_workspace(entity: str, project: str, *, name: str = NAME, x: str = "Step") -> Any:
    """The workspace; its ``save`` sends it.

    Args:
        entity: user or team, who must also have the custom charts (``areal-callbacks wandb-charts``).
        project: which gets it as one of its views.
        name: of the view.
        x: the horizontal axis of all lines, ``Step`` or a key, ``train_perf/total_tokens`` say.

    Raises:
        ImportError: wandb-workspaces is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is written for an older pydantic
        from wandb_workspaces import workspaces
        from wandb_workspaces.reports import v2 as panels

        sections = [
            workspaces.Section(
                name=title,
                panels=list(_make_panels(panels, charts, entity, x)),
                is_open=True,
                layout_settings=workspaces.SectionLayoutSettings(columns=_PER_ROW, rows=-(-len(charts) // _PER_ROW)),
            )
            for title, charts in SECTIONS.items()
        ]
        settings = workspaces.WorkspaceSettings(x_axis=x)
        return workspaces.Workspace(entity=entity, project=project, name=name, sections=sections, settings=settings)


def dump_workspace(workspace: Any) -> str:
    """What ``save`` would send, as JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text: str = workspace._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)
        return text


def _make_panels(panels: ModuleType, charts: Sequence[Line | Custom], entity: str, x: str) -> Iterator[Any]:
    for chart in charts:
        if isinstance(chart, Line):
            options: dict[str, Any] = {"metric_regex": chart.pattern} if chart.pattern else {"y": list(chart.keys)}
            yield panels.LinePlot(title=chart.title, x=x, log_y=chart.log or None, **options)
        else:
            yield panels.CustomChart(
                query={"historyTable": {"tableKey": TABLE}},
                chart_name=f"{entity}/{chart.chart}",
                chart_fields={field: field for field in _TABLE_FIELDS},
                chart_strings=dict(chart.strings),
            )
