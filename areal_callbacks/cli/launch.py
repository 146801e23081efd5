"""``areal-callbacks launch``: ``accelerate launch`` with metrics, for scripts that are left as they are."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from areal_callbacks.config import ENVIRONMENT_VARIABLE, MetricsConfig

SECTION = "areal_callbacks"
_DESCRIPTION = (
    f"accelerate launch with metrics. They are configured by a section `{SECTION}:` in the Accelerate config, or by "
    "the same keys in a file of their own: --areal_config metrics.yaml, before the script (plain accelerate commands "
    "reject a config with an unknown section). Everything else is passed to accelerate launch unchanged:"
)


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run accelerate launch with the metrics of a section in its config."""
    try:
        from accelerate.commands.launch import launch_command
        from accelerate.utils import patch_environment
    except ImportError as error:
        raise click.ClickException(f"{error}: pip install 'areal-callbacks[accelerate]'") from error
    options = _parsed(list(arguments))
    own = vars(options).pop("areal_config")
    try:
        document, path = _accelerate_config(options.config_file, cpu=options.cpu)
        has_section = SECTION in document
        settings = _settings(document.pop(SECTION, None), path, own)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if not options.no_python:
        target = [*(["-m"] if options.module else []), options.training_script, *options.training_script_args]
        options.module, options.training_script, options.training_script_args = True, "areal_callbacks.run", target
    with patch_environment(**{ENVIRONMENT_VARIABLE: json.dumps(settings)}), ExitStack() as stack:
        if has_section:
            options.config_file = stack.enter_context(_written(document))
        launch_command(options)


def _parsed(arguments: list[str]) -> Any:
    """Accelerate's own parser, so that options and script are told apart as it does, with one option of ours."""
    from accelerate.commands.launch import launch_command_parser

    sys.argv = ["accelerate", "launch", *arguments]  # its help looks there
    parser = launch_command_parser()
    parser.prog, parser.description = "areal-callbacks launch", _DESCRIPTION
    parser.add_argument("--areal_config", default=None, help=f"A YAML file with the keys of the section {SECTION}.")
    return parser.parse_args(arguments)


def _accelerate_config(given: str | None, *, cpu: bool) -> tuple[dict[str, Any], str]:
    """The Accelerate config that will be used, empty where there is none, and its path."""
    import yaml
    from accelerate.commands.config.config_args import default_config_file

    path = given or default_config_file
    if given is None and (cpu or not os.path.isfile(path)):
        return {}, path
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot read this Accelerate config: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: malformed YAML: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path}: an Accelerate config is a mapping, got {document!r}")  # noqa: TRY004
    return document, path


def _settings(section: Any, path: str, own: str | None) -> dict[str, Any]:
    """The checked configuration for the children: the environment, the section, the file of its own."""
    if not isinstance(section, Mapping | None):
        raise ValueError(f"{path}: {SECTION}: expected a mapping of keys to values, got {section!r}")  # noqa: TRY004
    config = MetricsConfig.make(section or {}, source=f"{path}: {SECTION}")
    if own is not None:
        import yaml

        MetricsConfig.from_yaml(own)  # errors name the file
        config = MetricsConfig.make(config, **(yaml.safe_load(Path(own).read_text(encoding="utf-8")) or {}))
    return config.to_dict()


@contextmanager
def _written(document: dict[str, Any]) -> Iterator[str]:
    """The config without the section as a file of its own: the user's file is not touched."""
    import yaml

    before = signal.signal(signal.SIGTERM, _leave)
    try:
        with tempfile.TemporaryDirectory(prefix="areal_callbacks_") as folder:
            path = Path(folder, "accelerate.yaml")
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            yield str(path)
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: FrameType | None) -> None:
    """Schedulers end jobs with SIGTERM, which would leave the file behind."""
    raise SystemExit(128 + number)
