"""``areal-callbacks inspect``: what would be measured in a model, from its configuration alone."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click
from tabulate import tabulate

from areal_callbacks.cli.errors import explain_unknown_model
from areal_callbacks.cli.model_configs import fill_defaults, list_model_types, read_class, read_fields

if TYPE_CHECKING:
    from torch import nn

    from areal_callbacks.monitors.moe_balance.routers import Router


_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM", "ForCTC", "Model")


@click.command("inspect")
@click.argument("model_or_config")
def command(model_or_config: str) -> None:
    """Print which routers and which FLOPs of a model are known.

    MODEL_OR_CONFIG is a folder with a config.json, a JSON file, or a model type such as qwen3_moe with the default
    dimensions that transformers gives it. The model is built without memory for its weights;
    nothing is downloaded.

    \b
    Example:
      areal-callbacks inspect qwen3_moe
    """
    config = _read(model_or_config)
    model = _build_without_weights(config)
    click.echo(f"{type(model).__name__} ({config.model_type})")
    click.echo()
    click.echo(_describe_routers(model))
    click.echo()
    click.echo(_describe_flops(config))


def _read(model_or_config: str) -> Any:
    fields = read_fields(model_or_config)
    if fields is None and model_or_config not in (known := list_model_types()):
        raise click.ClickException(explain_unknown_model(model_or_config, known))
    return fill_defaults({"model_type": model_or_config} if fields is None else fields)


def _build_without_weights(config: Any) -> nn.Module:
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
    whole = ("ForConditionalGeneration", "MTModel") if getattr(config, "is_encoder_decoder", False) else ()
    for ending in (*whole, *_ENDINGS):
        yield from (item for item in classes if item.__name__.endswith(ending) and not _is_base(item))


def _is_base(model_class: type) -> bool:
    """The empty base class of a family, which would build without any module."""
    return model_class.__name__.endswith("PreTrainedModel")


def _describe_routers(model: nn.Module) -> str:
    from areal_callbacks.monitors.moe_balance.routers import find_routers

    routers, uncounted = find_routers(model), _describe_uncounted(model)
    if not routers:
        return "\n".join(uncounted or ["no routers: no moe_balance metrics"])
    headers = ("stack", "layers", "router", "contract", "experts", "top-k")
    table = tabulate([_row(group) for group in _group(routers)], headers, disable_numparse=True)
    return "\n".join([table, *uncounted])


def _describe_uncounted(model: nn.Module) -> list[str]:
    """A line for every class of routers that are not counted, some of them for want of a number only."""
    from areal_callbacks.monitors.moe_balance.contracts import CONTRACTS, top_k_of
    from areal_callbacks.monitors.moe_balance.routers import find_unrecognised_routers

    modules = {type(module).__name__: module for module in model.modules()}
    lines = []
    for name in find_unrecognised_routers(model):
        if name not in CONTRACTS and top_k_of(modules[name]) is None:
            lines.append(f"{name}: countable, but this configuration lacks the experts per token (top-k)")
        else:
            lines.append(f"not countable: {name} (register_router_contract adds a router class)")
    return lines


def _group(routers: Iterable[Router]) -> Iterator[list[Router]]:
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


def _describe_flops(config: Any) -> str:
    from areal_callbacks.cli.work_tables import describe_sequence, describe_works, read_works
    from areal_callbacks.flops import get_flops_estimator

    try:
        estimate = get_flops_estimator(config, model_class=read_class(config))
    except ValueError as error:
        return f"FLOPs: {error}"
    if estimate is None:
        return f"FLOPs: no formula for {config.model_type}; register_flops_estimator adds one"
    total = f"FLOPs: {estimate(4096):,} to train on {describe_sequence(estimate, '4,096')}"
    works = read_works(config, estimate, [4096])
    return f"{total}\n\n{describe_works(works)}" if works else total
