"""``areal-callbacks wandb-workspace``: a ready W&B workspace with the charts of this package."""

from __future__ import annotations

import importlib.util

import click

from areal_callbacks.charts.workspace import NAME, dump_workspace, make_workspace


@click.command("wandb-workspace")
@click.option("--entity", required=True, help="User or team.")
@click.option("--project", required=True, help="Project that gets the workspace.")
@click.option("--name", default=NAME, show_default=True, help="Of the saved view.")
@click.option("--x", default="Step", show_default=True, help="Horizontal axis: Step, or a key.")
@click.option("--dry-run", is_flag=True, help="Print it as JSON, without a network.")
def command(entity: str, project: str, name: str, x: str, dry_run: bool) -> None:
    """Save a W&B workspace with the charts of this package.

    Its sections: learning, speed, experts with both table charts, and policy.
    The charts of single experts are those that `wandb-charts --entity ENTITY` registers: run that once before.

    \b
    Example:
      areal-callbacks wandb-workspace --entity my-team --project my-project
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise click.ClickException("this needs wandb-workspaces: pip install 'areal-callbacks[wandb-workspaces]'")
    workspace = make_workspace(entity, project, name=name, x=x)
    if dry_run:
        click.echo(dump_workspace(workspace))
        return
    try:
        click.echo(workspace.save().url)
    except Exception as error:
        raise click.ClickException(f"W&B: {type(error).__name__}: {error}") from error
