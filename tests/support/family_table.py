"""The table of router families in docs/moe_balance.md; `python tests/support/family_table.py` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from support.tiny_moe import FAMILIES, NOT_COVERED, model_class, tiny_config

from areal_callbacks.monitors.moe_balance.routers import find_routers

PAGE = Path(__file__).parents[2] / "docs" / "moe_balance.md"
BEGIN, END = "<!-- families: generated -->", "<!-- families: end -->"


def table() -> str:
    """Model type, router classes, contract; then what is not covered."""
    lines = ["| model type | router | contract |", "|---|---|---|"]
    for model_type in FAMILIES:
        with torch.device("meta"):
            model = model_class(model_type)(tiny_config(model_type))
        routers = find_routers(model)
        names = ", ".join(sorted({f"`{type(router.module).__name__}`" for router in routers}))
        contracts = ", ".join(sorted({router.contract.name for router in routers}))
        lines.append(f"| {model_type} | {names} | {contracts} |")
    lines += ["", "| not covered | reason |", "|---|---|"]
    lines += [f"| {folder} | {reason} |" for folder, reason in sorted(NOT_COVERED.items())]
    return "\n".join(lines)


def document() -> str:
    """The page as it is."""
    return PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    before, rest = document().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
