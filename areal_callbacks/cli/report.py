"""``areal-callbacks report``: the HTML report of one run, or of several to compare."""

from __future__ import annotations

from pathlib import Path

import click

from areal_callbacks.cli.errors import explain
from areal_callbacks.report import show_report


@click.command("report")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. [default: report.html beside metrics.jsonl; here for several runs]",
)
@click.option("--name", "names", multiple=True, help="Name of a run, once per PATH. [default: its folder]")
@click.option("--every-training", is_flag=True, help="Of a folder that was used again, all. [default: the last]")
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
def command(
    paths: tuple[str, ...], output: Path | None, names: tuple[str, ...], every_training: bool, show: bool
) -> None:
    """Build the report of a run, or of several to compare.

    It is one HTML file, which needs neither a network nor a server.

    PATH is a metrics.jsonl, its folder, or a host's output folder that has an areal_metrics folder.

    \b
    Example:
      areal-callbacks report outputs/base outputs/new --open
    """
    try:
        report = show_report(*paths, output=output, names=names or None, every_training=every_training)
    except (ValueError, OSError) as error:
        raise click.ClickException(explain(error)) from error
    click.echo(report.path)
    if show:
        click.launch(report.path.resolve().as_uri())
