"""A picture of what a terminal shows: the text itself, in a font of even width."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.svg import Svg

LINE, CHARACTER, MARGIN = 17, 7.3, 14


def draw_console(text: str, title: str, command: str) -> Svg:
    """The command, and its output as it stands."""
    lines = [f"$ {command}", *text.rstrip("\n").split("\n")]
    width = round(max(map(len, lines)) * CHARACTER) + 2 * MARGIN
    svg = Svg(width, LINE * len(lines) + 2 * MARGIN, title, font="ui-monospace,Menlo,Consolas,monospace")
    for number, line in enumerate(lines, start=1):
        svg.text(MARGIN, MARGIN + LINE * number - 5, line, _choose_kind(line, number))
    return svg


def _choose_kind(line: str, number: int) -> str:
    """The command is faint, a severe finding stands out."""
    if number == 1:
        return "faint"
    return "bad" if line.lstrip().startswith("severe:") else "ink"


def run_demo(folder: Path) -> str:
    """What ``areal-callbacks demo`` leaves on the console: the summary at its end, without the host's rows."""
    command = Path(sys.executable).with_name("areal-callbacks")
    done = subprocess.run([command, "demo"], cwd=folder, capture_output=True, text=True, timeout=600, check=True)
    return read_summary(done.stdout)


def read_summary(output: str) -> str:
    """From our first line to the end."""
    before, begin, rest = output.partition("AReaL metrics, step")
    if not begin:
        raise ValueError(f"no summary in {before!r}")
    return begin + rest
