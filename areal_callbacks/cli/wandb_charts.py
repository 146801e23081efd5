"""``areal-callbacks wandb-charts``: custom charts of the MoE balance, and whole expert-load tables."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import click

from areal_callbacks.charts import CHARTS, MOST_LAYERS, load_chart
from areal_callbacks.charts.recovery import TABLE_SUFFIX, LayerTable, read_layers_of_metrics, read_layers_of_tables
from areal_callbacks.cli.errors import explain
from areal_callbacks.report.locate import find_metrics
from areal_callbacks.safety.text import make_printable

_MOST_WARNINGS = 100


@click.group("wandb-charts", invoke_without_command=True)
@click.option("--entity", help="User or team that gets the charts.")
@click.option("--access", type=click.Choice(["private", "public"]), default="private", show_default=True)
@click.option("--layers", type=click.IntRange(min=1), default=MOST_LAYERS, show_default=True, help="Number of layers.")
@click.option("--stack", default="", help="Layers of a stack other than the main decoder.")
@click.option("--dry-run", is_flag=True, help="Say what would be registered, without a network.")
@click.option(
    "--print",
    "printed",
    metavar="NAME",
    type=click.Choice(list(CHARTS)),
    help="Print one for the chart editor; --dry-run lists the names.",
)
@click.pass_context
def command(
    context: click.Context,
    entity: str | None,
    access: str,
    layers: int,
    stack: str,
    dry_run: bool,
    printed: str | None,
) -> None:
    """Register the MoE charts with W&B, or recover tables.

    --layers and --stack say which scalars the chart moe_step_layer_history looks for.

    \b
    Example:
      areal-callbacks wandb-charts --entity my-team --layers 48
    """
    if context.invoked_subcommand is not None:
        return
    if printed is not None:
        click.echo(json.dumps(load_chart(printed, layers=layers, stack=stack), indent=2))
        return
    if entity is None:
        raise click.UsageError("--entity says who gets the charts; --print NAME needs none")
    charts = {name: load_chart(name, defaults=False, layers=layers, stack=stack) for name in CHARTS}
    if dry_run:
        for name in charts:
            click.echo(f"would register {entity}/{name} ({access}): {CHARTS[name]}")
        return
    _register(entity, access, charts)


def _register(entity: str, access: str, charts: dict[str, dict[str, Any]]) -> None:
    try:
        import wandb
    except ImportError as error:
        raise click.ClickException("W&B is not installed: pip install 'areal-callbacks[wandb]'") from error
    try:
        api = wandb.Api()
        for name, specification in charts.items():
            chart = api.create_custom_chart(
                entity=entity,
                name=name,
                display_name=CHARTS[name],
                spec_type="vega2",
                access=access,
                spec=specification,
            )
            click.echo(f"registered {chart}: {CHARTS[name]}")
    except AttributeError as error:
        raise click.ClickException(f"wandb {wandb.__version__} cannot register charts, a newer one can") from error
    except Exception as error:
        raise click.ClickException(f"W&B: {type(error).__name__}: {error}") from error


@command.command("recover")
@click.argument("source", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--step", "steps", type=int, multiple=True, help="Only this step of a metrics.jsonl; may be repeated.")
@click.option("--summary", is_flag=True, help="One row a layer: its maximum over ideal load.")
@click.option("-o", "--output", type=click.File("w", encoding="utf-8", lazy=True), help="CSV file. [default: print]")
def recover(source: Path, steps: tuple[int, ...], summary: bool, output: TextIO | None) -> None:
    """Write complete expert loads as CSV.

    PATH is a metrics.jsonl, its folder, or a host's output folder that has an areal_metrics folder; or a table file
    (*.table.json), or a folder of downloaded artifacts.

    \b
    Example:
      areal-callbacks wandb-charts recover outputs/new -o loads.csv
    """
    try:
        known, has_stacks = _survey(source, steps)
        writer = csv.writer(output or sys.stdout, lineterminator="\n")
        writer.writerows(_rows(known, has_stacks, _layers(source, steps)[1], summary))
    except (ValueError, OSError) as error:
        raise click.ClickException(explain(error)) from error


def _survey(source: Path, steps: tuple[int, ...]) -> tuple[str, bool]:
    """The name of the first column, and whether there are stacks besides the main decoder; says what is truncated.

    The layers are not kept for it: those of a long run do not fit into memory.
    """
    known, layers = _layers(source, steps)
    found, has_stacks, truncated = False, False, set()
    for layer in layers:
        found, has_stacks = True, has_stacks or bool(layer.stack)
        if layer.truncated:
            truncated.add(make_printable(f"{layer.source}: layer {layer.layer} lacks experts", 200))
    if not found:
        raise ValueError(f"{make_printable(source)}: no expert loads{' at these steps' if steps else ''}")
    for line in sorted(truncated)[:_MOST_WARNINGS]:
        click.echo(f"{line}: the table is truncated, take its artifact or metrics.jsonl", err=True)
    return known, has_stacks


def _layers(source: Path, steps: tuple[int, ...]) -> tuple[str, Iterator[LayerTable]]:
    """The name of the first column, and the layers."""
    if source.name.endswith(TABLE_SUFFIX) or (source.is_dir() and not _has_metrics(source)):
        if steps:
            raise ValueError("--step: W&B's table files do not contain their step, metrics.jsonl does")
        return "table", read_layers_of_tables(source)
    return "step", read_layers_of_metrics(find_metrics(source), steps)


def _has_metrics(folder: Path) -> bool:
    try:
        find_metrics(folder)
    except ValueError:
        return False
    return True


def _rows(known: str, stacks: bool, layers: Iterable[LayerTable], summary: bool) -> Iterator[Iterable[object]]:
    names = ["max_over_ideal"] if summary else ["expert", "tokens", "load_percent"]
    yield [known, *(["stack"] if stacks else []), "layer", *names]
    for layer in layers:
        stack = [make_printable(layer.stack).replace("\n", " ")] if stacks else []
        start = [layer.source, *stack, layer.layer]
        if summary:
            yield [*start, layer.max_over_ideal]
        else:
            yield from ([*start, expert, *row] for expert, row in enumerate(zip(layer.tokens, layer.percent)))
