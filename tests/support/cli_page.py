"""The help of every command in docs/cli.md; `python tests/support/cli_page.py` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from areal_callbacks import cli

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BEGIN, END = "<!-- commands: generated -->", "<!-- commands: end -->"
WIDTH = 80
PASSED_ON = ("demo",)
"""Commands whose help is that of the script that they run."""


def list_commands() -> Iterator[tuple[str, click.Context]]:
    """Every command and subcommand with a context to render it in."""
    root = click.Context(cli.main, info_name="areal-callbacks", terminal_width=WIDTH)
    for name in cli.main.list_commands(root):
        command = cli.main.get_command(root, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=root, terminal_width=WIDTH)
        yield name, context
        if isinstance(command, click.Group):
            for inner, each in command.commands.items():
                yield f"{name} {inner}", click.Context(each, info_name=inner, parent=context, terminal_width=WIDTH)


def read_help(context: click.Context) -> str:
    """As a terminal of 80 columns shows it."""
    return context.command.get_help(context)


def write_sections() -> str:
    """A section for each command."""
    return "\n\n".join(f"## `{name}`\n\n```text\n{read_help(context)}\n```" for name, context in list_commands())


if __name__ == "__main__":
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{write_sections()}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
