"""Numbers of a run in health and of the same run when it is sick, side by side, for docs/reading_the_numbers.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from support.sick_runs import SICKNESSES
from support.simulated_runs import EVERY, Simulation
from support.svg import Svg

from areal_callbacks.findings import Finding, find

SEED, ONSET = 20, 120
WIDTH, HEIGHT = 740, 280
LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT, GAP = 56, 66, 290, 150, 364


@dataclass(frozen=True)
class Drawn:
    """What one picture shows.

    Attributes:
        rule: that finds the sickness, the key of ``SICKNESSES``.
        title: the number and its unit.
        read: the values of a run, one an export.
        bound: the value beyond which the rule speaks, where it is the same for every run.
    """

    rule: str
    title: str
    read: Callable[[Simulation], Sequence[float]]
    bound: float | None = None


def _read_column(key: str) -> Callable[[Simulation], Sequence[float]]:
    return lambda run: run.columns[key].tolist()


def _read_balance(run: Simulation) -> Sequence[float]:
    assert run.counts is not None
    layer = run.counts[:, 1]
    return (layer.max(1) / layer.mean(1)).tolist()


LINES = {
    "throughput": Drawn(
        "throughput_drop", "train_perf/tokens_per_second", _read_column("train_perf/tokens_per_second")
    ),
    "balance": Drawn("expert_collapse", "moe_balance/layer_1/max_over_ideal", _read_balance, bound=0.8 * math.sqrt(16)),
    "mismatch": Drawn(
        "mismatch",
        "ppo_actor/train_infer/logp_abs_diff/avg",
        _read_column("ppo_actor/train_infer/logp_abs_diff/avg"),
        bound=0.03,
    ),
    "staleness": Drawn(
        "staleness",
        "ppo_actor/update/version_stats/sample_staleness_theta_avg",
        _read_column("ppo_actor/update/version_stats/sample_staleness_theta_avg"),
        bound=8.0,
    ),
}


def simulate(rule: str | None = None) -> Simulation:
    """The run of all pictures: resumed once, with some slow exports; sick from the export ``ONSET`` on."""
    run = Simulation(SEED, moe=True, policy=True)
    if rule is not None:
        SICKNESSES[rule][0](run, ONSET)
    return run


def draw_all() -> Iterator[tuple[str, str]]:
    """File name → SVG."""
    yield from ((f"{name}.svg", str(_draw_lines(drawn))) for name, drawn in LINES.items())
    yield "experts.svg", str(_draw_experts())


def _draw_lines(drawn: Drawn) -> Svg:
    healthy, sick = simulate(), simulate(drawn.rule)
    findings = [one for one in find(sick.history()) if one.rule == drawn.rule]
    finding = next((one for one in findings if one.key == drawn.title), findings[0])
    values = [drawn.read(healthy), drawn.read(sick)]
    top = _round_up(max(map(max, (*values, [drawn.bound or 0.0]))))
    svg = Svg(WIDTH, HEIGHT, f"{drawn.title} of a healthy run and of a sick one, found at step {finding.found_step:,}")
    resumed = {} if healthy.resumed is None else {_step(healthy.resumed): "resumed"}
    svg.text(10, 22, drawn.title)
    _draw_frame(svg, 0, "healthy", top, drawn.bound)
    _draw_series(svg, 0, values[0], top, "good-line")
    _draw_marks(svg, 0, resumed, "faint")
    _draw_frame(svg, GAP, "sick", top, drawn.bound)
    _draw_series(svg, GAP, values[1], top, "bad-line")
    _draw_marks(svg, GAP, {_step(ONSET): "begins", finding.found_step: "found"}, "ink")
    _draw_finding(svg, finding)
    return svg


def _round_up(number: float) -> float:
    """To one of 1, 2, 4, 6, 8 times a power of ten, so that its half is a short number as well."""
    unit = 10.0 ** math.floor(math.log10(number))
    return next(digit * unit for digit in (1, 2, 4, 6, 8, 10) if digit * unit >= number)


def _step(export: int) -> int:
    return EVERY * (export + 1)


def _draw_frame(svg: Svg, left: float, title: str, top: float, bound: float | None) -> None:
    """Axes with their numbers."""
    start, end, floor = left + LEFT, left + LEFT + PLOT_WIDTH, TOP + PLOT_HEIGHT
    svg.text(start, 46, title, "good" if title == "healthy" else "bad")
    for share in (0.0, 0.5, 1.0):
        height = floor - share * PLOT_HEIGHT
        svg.line([(start, height), (end, height)], "grid")
        svg.text(start - 6, height + 4, f"{share * top:,g}", "faint", "end")
    for step in (0, 1000, 2000):
        svg.text(start + step / 2000 * PLOT_WIDTH, floor + 17, f"{step:,}", "faint", "middle")
    if bound is not None:
        svg.line([(start, floor - bound / top * PLOT_HEIGHT), (end, floor - bound / top * PLOT_HEIGHT)], "bound")


def _draw_series(svg: Svg, left: float, values: Sequence[float], top: float, kind: str) -> None:
    width = PLOT_WIDTH / len(values)
    points = (
        (left + LEFT + place * width, TOP + PLOT_HEIGHT * (1 - value / top)) for place, value in enumerate(values)
    )
    svg.line(points, kind)


def _draw_marks(svg: Svg, left: float, marks: Mapping[int, str], kind: str) -> None:
    """Vertical lines at steps; the last word stands right of its line, the others left of theirs."""
    for number, (step, word) in enumerate(marks.items(), start=1):
        x = left + LEFT + step / 2000 * PLOT_WIDTH
        svg.line([(x, TOP - 8), (x, TOP + PLOT_HEIGHT)], f"{kind}-line")
        is_last = number == len(marks)
        svg.text(x + (4 if is_last else -4), TOP - 2, word, kind, "start" if is_last else "end")


def _draw_finding(svg: Svg, finding: Finding) -> None:
    svg.text(10, HEIGHT - 14, f"{finding.severity}, found at step {finding.found_step:,}: {finding.summary}")


def _draw_experts() -> Svg:
    """The loads of the experts of single layers at the last export, over the ideal load."""
    svg = Svg(WIDTH, 230, "loads of 16 experts over the ideal load: balanced, some starved, one collapsed")
    layers = {
        "healthy": (None, 0),
        "starved_experts": ("starved_experts", 0),
        "expert_collapse": ("expert_collapse", 1),
    }
    for place, (title, (rule, layer)) in enumerate(layers.items()):
        run = simulate(rule)
        assert run.counts is not None
        counts = run.counts[-1, layer]
        _draw_bars(svg, 16 + 236 * place, title, (counts / counts.mean()).tolist())
    return svg


def _draw_bars(svg: Svg, left: float, title: str, loads: Sequence[float]) -> None:
    """Bars on a scale of their own; the dashed line is the ideal load."""
    top, floor, width = max(loads), 190, 200 / len(loads)
    svg.text(left, 22, f"{title}: {top:.3g} x ideal")
    for place, load in enumerate(loads):
        height = max(load / top * 140, 0.5)
        kind = "bad" if load < 0.1 or load > 3 else "good"
        svg.rectangle(left + place * width, floor - height, width - 2, height, kind)
    svg.line([(left, floor - 140 / top), (left + 200, floor - 140 / top)], "bound")
    svg.text(left, floor + 20, f"expert 0 to {len(loads) - 1}", "faint")
