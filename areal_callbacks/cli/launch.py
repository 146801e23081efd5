"""``areal-callbacks launch``: ``accelerate launch`` with metrics, for scripts that are left as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

SECTION = "areal_callbacks"
_HELP = """\
usage: areal-callbacks launch [--areal_config metrics.yaml] [options of accelerate launch] script [arguments]

The metrics are configured by a section `areal_callbacks:` in the Accelerate config, or by the same keys in a file of
their own (plain accelerate commands reject a config with an unknown section):

  --areal_config FILE   a YAML file with the keys of the section

Everything else goes to accelerate launch unchanged:
"""


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run accelerate launch with the metrics of a section in its config."""
    sys.exit(launch(list(arguments)))


def launch(arguments: list[str]) -> int:
    """Run ``accelerate launch`` with these arguments and return its exit code."""
    if arguments[:1] in (["-h"], ["--help"]) or not arguments:
        click.echo(_HELP)
        return _accelerate(["--help"], os.environ)
    from accelerate.commands.launch import launch_command_parser

    own, arguments = _take_option(arguments, "--areal_config", launch_command_parser())
    known = launch_command_parser().parse_args(arguments)
    try:
        document, path = _accelerate_config(known.config_file, cpu=known.cpu)
        section = document.pop(SECTION, None) if document is not None else None
        settings = _settings(section, path, own)
    except ValueError as error:
        click.echo(f"areal-callbacks launch: {error}", err=True)
        return 2
    environment = {**os.environ, "AREAL_CALLBACKS": json.dumps(settings)}
    options, script = _split(arguments, known)
    with _without_section(options, document if section is not None else None) as options:
        if known.no_python:
            return _accelerate([*options, *script], environment)
        module = ["-m"] if known.module else []
        return _accelerate([*options, "-m", "areal_callbacks.run", *module, *script], environment)


def _accelerate(arguments: list[str], environment: Mapping[str, str]) -> int:
    line = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", *arguments]
    code = subprocess.run(line, env=dict(environment), check=False).returncode
    return code if code >= 0 else 128 - code


def _take_option(arguments: list[str], name: str, parser: Any) -> tuple[str | None, list[str]]:
    """An option of our own, given before the script like Accelerate's."""
    parser.add_argument(name)
    namespace = parser.parse_args(arguments)
    value: str | None = getattr(namespace, name.lstrip("-"))
    end = len(arguments) - len(namespace.training_script_args) - 1
    rest: list[str] = []
    skip = False
    for argument in arguments[:end]:
        if skip:
            skip = False
        elif argument == name:
            skip = True
        elif not argument.startswith(f"{name}="):
            rest.append(argument)
    return value, rest + arguments[end:]


def _split(arguments: list[str], known: Any) -> tuple[list[str], list[str]]:
    """Accelerate's options without ``-m`` and the config file, and the script with its arguments."""
    start = len(arguments) - len(known.training_script_args) - 1
    options = [argument for argument in arguments[:start] if argument not in ("-m", "--module")]
    return options, arguments[start:]


def _accelerate_config(given: str | None, *, cpu: bool) -> tuple[dict[str, Any] | None, str]:
    """The Accelerate config that will be used, and its path; None without one."""
    import yaml
    from accelerate.commands.config.config_args import default_config_file

    path = given or default_config_file
    if given is None and (cpu or not os.path.isfile(path)):
        return None, path
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot read this Accelerate config: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: malformed YAML: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: an Accelerate config is a mapping, got {document!r}")  # noqa: TRY004
    return document, path


def _settings(section: Any, path: str, own: str | None) -> dict[str, Any]:
    """The checked configuration for the children."""
    from areal_callbacks.config import MetricsConfig

    config = MetricsConfig.make({} if section is None else section, source=f"{path}: {SECTION}")
    if own is not None:
        config = MetricsConfig.make(own) if section is None else MetricsConfig.make(config, **_read(own))
    return config.to_dict()


def _read(path: str) -> dict[str, Any]:
    import yaml

    from areal_callbacks.config import MetricsConfig

    MetricsConfig.from_yaml(path)
    return dict(yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {})


@contextmanager
def _without_section(options: list[str], document: dict[str, Any] | None) -> Iterator[list[str]]:
    """The options with a config file that Accelerate accepts; the user's file is not touched."""
    if document is None:
        yield options
        return
    import yaml

    with tempfile.TemporaryDirectory(prefix="areal_callbacks_") as folder:
        path = Path(folder, "accelerate.yaml")
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        yield [*_without_option(options, "--config_file"), "--config_file", str(path)]


def _without_option(options: list[str], name: str) -> list[str]:
    kept: list[str] = []
    skip = False
    for option in options:
        if skip:
            skip = False
        elif option == name:
            skip = True
        elif not option.startswith(f"{name}="):
            kept.append(option)
    return kept
