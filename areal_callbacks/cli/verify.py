"""``areal-callbacks verify``: are the metrics right on this script? Some steps of it with an independent recount."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from areal_callbacks.safety.text import tell_number

if TYPE_CHECKING:
    from areal_callbacks.verify.beside import Beside

_UNTRAINED = "nothing was trained, or nothing observed it: no trainer, accelerator or track() in this script"


@click.command("verify", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Optimizer steps to make.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, on the last line.")
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(steps: int, as_json: bool, words: tuple[str, ...]) -> None:
    """Recount some steps of a training script from its operators.

    COMMAND is a Python script with its arguments, or -m and a module; python before it may be left out. Prints tokens,
    padding, routed assignments and FLOPs, those of the metrics beside the recount. Exit code 0: all are equal; 1: some
    differ; 2: nothing was trained.

    \b
    Example:
      areal-callbacks verify --steps 3 -- python train.py --its-own flags
    """
    from areal_callbacks.verify.comparison import compare, differs
    from areal_callbacks.verify.script import find_script, run_beside

    try:
        script = find_script(words)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    beside, code = run_beside(script, steps)
    if code not in (None, 0):
        sys.exit(code)
    rows = compare(beside.exported, beside.recounted)
    is_trained = beside.has_sessions and bool(beside.steps or beside.recounted.calls)
    if _is_first_rank():
        if is_trained or as_json:
            click.echo(_to_json(beside, rows) if as_json else _describe(beside, rows))
        else:
            click.echo(_UNTRAINED, err=True)
    sys.exit(2 if not is_trained else int(differs(rows)))


def _describe(beside: Beside, rows: list[Any]) -> str:
    from areal_callbacks.verify.comparison import tabulate_rows

    parts = [
        f"{tell_number(beside.steps, 'optimizer step')}, lengths read by: {beside.exported.rule or '-'}",
        tabulate_rows(rows),
        *(f"could not be read: {problem}" for problem in beside.recounted.unread),
    ]
    return "\n\n".join(parts)


def _to_json(beside: Beside, rows: list[Any]) -> str:
    recounted = beside.recounted
    return json.dumps(
        {
            "steps": beside.steps,
            "rule": beside.exported.rule,
            "rows": [row._asdict() for row in rows],
            "routed": {"/".join(map(str, key)).lstrip("/"): counts for key, counts in recounted.routed.items()},
            "unread": recounted.unread,
        }
    )


def _is_first_rank() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"
