"""The help of every command: one screen with an example, the same in the documentation, completed by shells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.cli_page import PAGE, PASSED_ON, list_commands, read_help, write_sections

from areal_callbacks import cli

SCREEN, WIDTH = 24, 80
PAGES = {name: read_help(context) for name, context in list_commands()}


def test_the_page_has_the_help_of_every_command() -> None:
    assert write_sections() in PAGE.read_text(encoding="utf-8"), "run tests/support/cli_page.py"


@pytest.mark.parametrize("name", sorted(PAGES))
def test_it_fits_on_one_screen(name: str) -> None:
    lines = PAGES[name].splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= WIDTH


def test_summaries_of_the_commands_are_whole_and_fit_on_one_screen() -> None:
    text = CliRunner().invoke(cli.main, ["--help"], terminal_width=WIDTH).output
    assert "..." not in text.replace("[ARGS]...", "")
    assert len(text.splitlines()) <= SCREEN
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_same_thing_is_said_in_the_same_words() -> None:
    """What PATH, a model and an option that several commands have mean."""
    runs, models = "report, check, watch, wandb-charts recover", "inspect, flops"
    sentences = {
        runs: "PATH is a metrics.jsonl, its folder, or a host's output folder that has an areal_metrics folder",
        models: "MODEL_OR_CONFIG is a folder with a config.json, a JSON file, or a model type such as qwen3_moe with",
        "report, watch": "--name TEXT Name of a run, once per PATH. [default: its folder]",
        "check, flops, verify": "--json Print one JSON object",
        "run, launch": "and measure the training",
    }
    for names, sentence in sentences.items():
        for name in names.split(", "):
            assert sentence in " ".join(PAGES[name].split()), name


@pytest.mark.parametrize("name", sorted(PAGES.keys() - PASSED_ON))
def test_its_example_is_understood(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command's own parser, which runs nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "new").mkdir(parents=True)
    (example,) = [line.strip() for line in PAGES[name].splitlines() if line.startswith("    areal-callbacks")]
    words = example.split()[1:]
    command: click.Command = cli.main
    while isinstance(command, click.Group) and words and command.get_command(click.Context(command), words[0]):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    assert command.name == name.split()[-1]
    assert command.make_context(name, words)


def _complete(line: str, tmp_path: Path) -> list[str]:
    words = {"COMP_WORDS": f"areal-callbacks {line}", "COMP_CWORD": str(len(line.split(" ")))}
    environment = {**os.environ, "_AREAL_CALLBACKS_COMPLETE": "bash_complete", **words}
    code = "from areal_callbacks.cli import main; main(prog_name='areal-callbacks')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    return [line.split(",")[1] for line in done.stdout.splitlines()]


def test_commands_and_options_complete(tmp_path: Path) -> None:
    assert _complete("re", tmp_path) == ["report"]
    assert _complete("verify --st", tmp_path) == ["--steps"]
