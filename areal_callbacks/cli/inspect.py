"""``areal-callbacks inspect``: what would be measured in a model, from its configuration alone."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tabulate import tabulate

if TYPE_CHECKING:
    from torch import nn

    from areal_callbacks.monitors.moe_balance.routers import Router


@click.command("inspect")
@click.argument("model_or_config")
def command(model_or_config: str) -> None:
    """Print which routers are recognised in a model, and whether its FLOPs are known. Nothing is downloaded.

    MODEL_OR_CONFIG is a directory with a config.json, a JSON file, or a model type such as qwen3_moe, which stands for
    transformers' default dimensions of that type. The model is built without memory for its weights.
    """
    config = _configuration(model_or_config)
    model = _without_weights(config)
    click.echo(f"{type(model).__name__} ({config.model_type})")
    click.echo()
    click.echo(_routers(model))
    click.echo()
    click.echo(_flops(config))


def _configuration(model_or_config: str) -> Any:
    try:
        from transformers import CONFIG_MAPPING
    except ImportError as error:
        raise click.ClickException(
            "models are built with transformers: pip install 'areal-callbacks[transformers]'"
        ) from error
    path = Path(model_or_config).expanduser()
    fields = (
        _read(path / "config.json" if path.is_dir() else path) if path.exists() else {"model_type": model_or_config}
    )
    model_type = fields.get("model_type")
    if model_type not in CONFIG_MAPPING:
        if not path.exists():
            raise click.ClickException(f"{model_or_config!r} is neither a local path nor a model type of transformers")
        raise click.ClickException(f"transformers knows no model type {model_type!r}")
    try:
        return CONFIG_MAPPING[model_type].from_dict(fields)
    except Exception as error:
        raise click.ClickException(f"not a configuration of {model_type}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot read {path}: {error}") from error
    if not isinstance(fields, dict):
        raise click.ClickException(f"{path} holds no JSON object")
    return fields


def _without_weights(config: Any) -> nn.Module:
    import torch

    reasons: list[str] = []
    for model_class in _model_classes(config):
        try:
            with torch.device("meta"):
                return model_class._from_config(config)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - the next class may take the configuration
            reasons.append(f"{model_class.__name__}: {error}")
    raise click.ClickException(
        f"transformers builds no model from this configuration of {config.model_type}"
        + "".join(f"\n{r}" for r in reasons)
    )


def _model_classes(config: Any) -> Iterator[Any]:
    """The classes that the configuration names, then those of its modeling file, with a head before the bare model."""
    import importlib

    import transformers

    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            yield getattr(transformers, name)
    modeling = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    classes = [
        item
        for item in vars(modeling).values()
        if inspect.isclass(item) and getattr(item, "config_class", None) is type(config)
    ]
    for ending in ("ForCausalLM", "ForConditionalGeneration", "Model"):
        yield from (item for item in classes if item.__name__.endswith(ending))


def _routers(model: nn.Module) -> str:
    from areal_callbacks.monitors.moe_balance.routers import find_routers, unrecognised_routers

    routers = find_routers(model)
    unknown = unrecognised_routers(model)
    lines = [f"not countable: {', '.join(unknown)} (register_router_contract can teach it)"] if unknown else []
    if not routers:
        return "\n".join([*lines, "no routers: no moe_balance metrics"])
    headers = ("stack", "layers", "router", "contract", "experts", "top-k")
    table = tabulate([_row(group) for group in _alike(routers)], headers, disable_numparse=True)
    return "\n".join([table, *lines])


def _alike(routers: Iterable[Router]) -> Iterator[list[Router]]:
    def key(router: Router) -> tuple[str, str, str, int, int]:
        return router.stack, type(router.module).__name__, router.contract.name, router.experts, router.top_k or 0

    for _, group in itertools.groupby(sorted(routers, key=lambda r: (*key(r), r.layer)), key):
        yield list(group)


def _row(group: list[Router]) -> tuple[str, ...]:
    first = group[0]
    layers = _ranges(sorted({router.layer for router in group}))
    name, top_k = type(first.module).__name__, "?" if first.top_k is None else str(first.top_k)
    return first.stack or "(main)", layers, name, first.contract.name, str(first.experts), top_k


def _ranges(numbers: list[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _flops(config: Any) -> str:
    from areal_callbacks.flops import get_flops_estimator

    try:
        estimate = get_flops_estimator(config)
    except ValueError as error:
        return f"FLOPs: {error}"
    if estimate is None:
        return f"FLOPs: no formula for {config.model_type}; register_flops_estimator can add one"
    return f"FLOPs: {estimate(4096):,} to train on one sequence of 4,096 tokens"
