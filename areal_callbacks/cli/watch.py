"""``areal-callbacks watch``: the report of runs that are still going on, in a browser."""

from __future__ import annotations

import importlib.util

import click

from areal_callbacks.cli.errors import explain
from areal_callbacks.watch import Feed, FollowedRun, serve

_NEEDS = ("starlette", "uvicorn")


@click.command("watch")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--name", "names", multiple=True, help="Name of a run, once per PATH. [default: its folder]")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: a free one]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Another address shows the runs to its network.")
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
def command(paths: tuple[str, ...], names: tuple[str, ...], port: int, host: str, show: bool) -> None:
    """Show the report of runs in a browser while they go on.

    PATH is a metrics.jsonl, its folder, or a host's output folder that has an areal_metrics folder. It need not exist
    yet. Only those who know the printed address see anything, and only this machine can reach it unless --host says
    otherwise. Interrupt with Ctrl+C.

    \b
    Example:
      areal-callbacks watch outputs/new --open
    """
    if missing := [name for name in _NEEDS if importlib.util.find_spec(name) is None]:
        raise click.ClickException(f"watch needs {' and '.join(missing)}: pip install 'areal-callbacks[watch]'")
    if names and len(names) != len(paths):
        raise click.ClickException(f"names: {len(names)} for {len(paths)} runs")

    def announce(address: str) -> None:
        click.echo(address)
        if show:
            click.launch(address)

    try:
        feed = Feed([FollowedRun(path, name) for path, name in zip(paths, names or [None] * len(paths))])
        serve(feed, host=host, port=port, announce=announce)
    except (ValueError, OSError) as error:
        raise click.ClickException(explain(error)) from error
