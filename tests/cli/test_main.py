from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import areal_callbacks
from areal_callbacks import cli

CLI_FOLDER = Path(cli.__file__).parent
HEAVY = ("torch", "transformers", "accelerate", "lightning", "megatron", "trl", "wandb", "swanlab", "trackio")


def _present() -> list[str]:
    return [name for name in cli.COMMANDS if (CLI_FOLDER / f"{name.replace('-', '_')}.py").exists()]


def test_version() -> None:
    result = CliRunner().invoke(cli.main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"areal-callbacks, version {areal_callbacks.__version__}\n")


@pytest.mark.parametrize("name", _present())
def test_every_command_with_a_file_is_listed_and_explains_itself(name: str) -> None:
    context = click.Context(cli.main)
    command = cli.main.get_command(context, name)
    assert command is not None
    assert command.get_short_help_str()
    assert f"\n  {name} " in CliRunner().invoke(cli.main, ["--help"]).output


def test_a_command_whose_module_is_missing_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cli.main.list_commands(click.Context(cli.main))
    monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, "not-there"))
    assert cli.main.list_commands(click.Context(cli.main)) == before == _present()
    result = CliRunner().invoke(cli.main, ["not-there"])
    assert result.exit_code == 2
    assert "No such command 'not-there'" in result.output


def test_a_module_that_is_no_command_is_none() -> None:
    assert cli.main.get_command(click.Context(cli.main), "__init__") is None


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_the_command_line_itself_loads_no_torch_and_no_framework(arguments: list[str]) -> None:
    script = (
        "import json, sys\n"
        "from areal_callbacks.cli import main\n"
        f"main({arguments!r}, standalone_mode=False)\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    output = subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60)
    assert json.loads(output.splitlines()[-1]) == []
