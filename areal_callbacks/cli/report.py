"""``areal-callbacks report``: the HTML report of one run, or of several to compare."""

from __future__ import annotations

from pathlib import Path

import click

from areal_callbacks.core.file_names import REPORT_FILE
from areal_callbacks.report import build_report, find_metrics


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
    """Build one self-contained HTML file, which needs neither a network nor a server.

    PATH is a metrics.jsonl, its folder, or a host's output folder that has an areal_metrics folder. Several are
    compared in one report.
    """
    try:
        if output is None:
            output = find_metrics(paths[0]).parent / REPORT_FILE if len(paths) == 1 else Path(REPORT_FILE)
        build_report(paths, output, names=names or None, every_training=every_training)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(output)
    if show:
        click.launch(output.resolve().as_uri())
