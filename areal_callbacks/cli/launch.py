"""``areal-callbacks launch``: ``accelerate launch`` with metrics, for scripts that are left as they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from areal_callbacks.config import MetricsConfig
from areal_callbacks.config.files import Layer, expect_mapping, read_environment, read_yaml

SECTION = "areal_callbacks"


@click.command(
    "launch",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run accelerate launch and measure the training.

    The configuration is a section `areal_callbacks:` in the Accelerate config, which plain accelerate commands reject;
    or its keys are in a file of their own: --areal_config FILE, before the script. Everything else goes to accelerate
    launch unchanged: `accelerate launch --help` lists it.

    \b
    Example:
      areal-callbacks launch --config_file accelerate.yaml train.py --its-own x
    """
    from areal_callbacks.run.environment import observed_processes

    options = parse_options(list(arguments))
    own = vars(options).pop("areal_config")
    try:
        document, path = read_accelerate_config(options.config_file, cpu=options.cpu)
        section = Layer(f"{path}: {SECTION}", document.pop(SECTION)) if SECTION in document else None
        settings = read_settings(section, own)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    with observed_processes(settings), ExitStack() as stack:
        if section is not None:
            options.config_file = stack.enter_context(_write(document))
        _launch(options)


def parse_options(arguments: list[str]) -> Any:
    """Options and script told apart as Accelerate does."""
    parser = build_parser()
    sys.argv = ["accelerate", "launch", *arguments]  # the parser looks there
    return parser.parse_args(arguments)


def build_parser() -> Any:
    """Accelerate's own parser, with one option of ours."""
    try:
        from accelerate.commands.launch import launch_command_parser
    except ImportError as error:
        raise click.ClickException(f"{error}: pip install 'areal-callbacks[accelerate]'") from error
    parser = launch_command_parser()
    parser.prog = "areal-callbacks launch"
    parser.add_argument("--areal_config", default=None, help=f"A YAML file with the keys of the section {SECTION}.")
    return parser


def read_accelerate_config(given: str | None, *, cpu: bool) -> tuple[dict[str, Any], str]:
    """The Accelerate config that will be used, empty where there is none, and its path."""
    from accelerate.commands.config.config_args import default_config_file

    path = given or default_config_file
    if given is None and (cpu or not os.path.isfile(path)):
        return {}, path
    return read_yaml(path), path


def read_settings(section: Layer | None, own: str | None) -> dict[str, Any]:
    """The checked configuration for the children: the environment, the section, the file of its own."""
    layers = [read_environment()]
    if section is not None and section.values is not None:  # an empty section is null
        layers.append(Layer(section.source, expect_mapping(section.values, section.source)))
    if own is not None:
        layers.append(Layer(own, read_yaml(own)))
    return MetricsConfig.combine(layers).to_dict()


def _launch(options: Any) -> None:
    """Accelerate's launcher; a script that failed has shown why, so that no traceback of the launcher follows."""
    from accelerate.commands.launch import launch_command
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch_command(options)
    except (subprocess.CalledProcessError, ChildFailedError) as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def _write(document: Mapping[str, Any]) -> Iterator[str]:
    """The config without the section as a file of its own: the user's file is not touched."""
    import yaml

    before = signal.signal(signal.SIGTERM, _exit)
    try:
        with tempfile.TemporaryDirectory(prefix="areal_callbacks_") as folder:
            path = Path(folder, "accelerate.yaml")
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            yield str(path)
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, _frame: FrameType | None) -> None:
    """Schedulers end jobs with SIGTERM, whose default would leave the file there."""
    raise SystemExit(128 + number)
