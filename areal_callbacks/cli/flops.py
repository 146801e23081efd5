"""``areal-callbacks flops``: the training FLOPs of a model, from its configuration alone."""

from __future__ import annotations

import json
from typing import Any

import click
from tabulate import tabulate

from areal_callbacks.cli.errors import explain_unknown_model
from areal_callbacks.cli.model_configs import fill_defaults, read_class, read_fields
from areal_callbacks.cli.work_tables import describe_sequence, describe_works, read_works, works_to_dict
from areal_callbacks.flops import TrainingFlops, get_flops_estimator, supported_model_types
from areal_callbacks.flops.registry import CheckedEstimator, Estimator
from areal_callbacks.flops.work import ModelWork


@click.command("flops")
@click.argument("model_or_config")
@click.option(
    "--length",
    "lengths",
    type=click.IntRange(min=0),
    multiple=True,
    default=(4096,),
    show_default=True,
    help="Tokens of one sequence; may be repeated.",
)
@click.option(
    "--fill-defaults",
    "complete",
    is_flag=True,
    help="Take fields that the file leaves out from transformers' defaults, as loading the model does.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(model_or_config: str, lengths: tuple[int, ...], complete: bool, as_json: bool) -> None:
    """Print the training FLOPs of a model, block by block.

    MODEL_OR_CONFIG is a folder with a config.json, a JSON file, or a model type such as qwen3_moe with the default
    dimensions that transformers gives it. Nothing is downloaded.

    \b
    Example:
      areal-callbacks flops models/mine/config.json --length 4096 --length 32768
    """
    config = _read(model_or_config, complete=complete)
    try:
        estimate = get_flops_estimator(config, model_class=read_class(config))
    except ValueError as error:
        hint = " (--fill-defaults takes missing fields from transformers)" if isinstance(config, dict) else ""
        raise click.ClickException(f"{error}{hint}") from error
    if estimate is None:
        raise click.ClickException(f"FLOPs: no formula for {model_or_config}; register_flops_estimator adds one")
    works = read_works(config, estimate, lengths)
    click.echo(_to_json(estimate, lengths, works) if as_json else _describe(estimate, lengths, works))


def _to_json(estimate: Estimator, lengths: tuple[int, ...], works: list[ModelWork]) -> str:
    totals = [{"tokens": length, "flops": estimate(length)} for length in lengths]
    return json.dumps(works_to_dict(works) if works else {"sequences": totals}, indent=2)


def _describe(estimate: Estimator, lengths: tuple[int, ...], works: list[ModelWork]) -> str:
    details = describe_works(works) if works else _tabulate(estimate, lengths)
    return f"{_describe_formula(estimate)}\n\n{details}"


def _read(model_or_config: str, *, complete: bool) -> Any:
    fields = read_fields(model_or_config)
    if fields is not None:
        return fill_defaults(fields) if complete else fields
    if model_or_config in supported_model_types():
        return fill_defaults({"model_type": model_or_config})
    raise click.ClickException(explain_unknown_model(model_or_config, supported_model_types()))


def _describe_formula(estimate: Estimator) -> str:
    whose = f"training FLOPs of {describe_sequence(estimate, 'L')}"
    if not isinstance(estimate, TrainingFlops):
        return f"{whose}, by a registered formula" if isinstance(estimate, CheckedEstimator) else whose
    windows = "".join(f" + {per_pair:,}·P(L, {window:,})" for window, per_pair in estimate.windows)
    legend = "\nP(L, W): (query, key) pairs of causal attention with a window of W tokens" if windows else ""
    return f"{whose}: {estimate.a:,}·L + {estimate.b:,}·L·(L+1){windows}{legend}"


def _tabulate(estimate: Estimator, lengths: tuple[int, ...]) -> str:
    rows = []
    for length in lengths:
        flops = estimate(length)
        per_token = f"{flops / length:,.0f}" if length else ""
        rows.append((f"{length:,}", f"{flops:,}", per_token))
    return tabulate(rows, ("tokens", "FLOPs", "FLOPs per token"), colalign=("right",) * 3, disable_numparse=True)
