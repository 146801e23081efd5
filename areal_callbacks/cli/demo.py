"""``areal-callbacks demo``: the example for the Hugging Face Trainer, from wherever the package is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import click

SCRIPT = "hf_trainer_moe.py"

_NEEDS = ("torch", "transformers", "accelerate")
_START = """
import sys
from areal_callbacks.run import run_script

script = sys.argv[1]
sys.argv[:2] = ["areal-callbacks demo"]  # what the script's own help calls it
run_script(script)
"""


@click.command("demo", context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Train a small mixture of experts and show its metrics.

    About a minute, no network. The same as `python examples/hf_trainer_moe.py`, whose options it takes and whose exit
    code it returns.
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the demo needs {', '.join(missing)}: pip install 'areal-callbacks[transformers,tensorboard]'"
        )
    sys.exit(run_and_wait([sys.executable, "-c", _START, str(_find_script()), *arguments]))


def run_and_wait(arguments: list[str]) -> int:
    """Run a program; its exit code, or 128 + the number of the signal that ended it, as in a shell."""
    with subprocess.Popen(arguments) as process:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:  # the program got it from the terminal too, and may want to clean up
                continue
            return code if code >= 0 else 128 - code


def _find_script() -> Path:
    # Not the package's __file__: an editable install maps this folder to another place than the parent's.
    package = importlib.util.find_spec("areal_callbacks.examples")
    if package is None or package.origin is None:
        raise click.ClickException("this installation has no areal_callbacks.examples")
    return Path(package.origin).with_name(SCRIPT)
