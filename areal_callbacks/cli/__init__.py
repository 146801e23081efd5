"""The ``areal-callbacks`` command: one file a command, imported when it is asked for.

The command ``some-name`` is the :class:`click.Command` or group called ``command`` in ``cli/some_name.py``. Listing the
commands imports all of them, so their files import torch and the frameworks inside functions.
"""

from __future__ import annotations

import importlib
import importlib.util

import click

from areal_callbacks import __version__

COMMANDS = (
    "run",
    "demo",
    "launch",
    "report",
    "check",
    "watch",
    "inspect",
    "flops",
    "verify",
    "wandb-charts",
    "wandb-workspace",
)


class _LazyGroup(click.Group):
    """Finds its commands by name; one whose file is not there does not exist."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(_module(name)) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(_module(cmd_name)).command
        return command


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="areal-callbacks")
def main() -> None:
    """AReaL's training metrics for the trainer that you already use."""
