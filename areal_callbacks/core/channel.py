"""What the ranks of one group agreed on for one kind of export, and how what this rank brings fits into it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from areal_callbacks.core.packing import Families, Plan, Signature, signature, sizes
from areal_callbacks.core.schema import Schema
from areal_callbacks.safety.reporting import report_once

LIMIT = 65_536
"""Entries of a schema above which it is forgotten, unless that many are in use at once."""

_BUCKET = 1024


class Fit(NamedTuple):
    """What a rank brings, its plan in the agreed schema, and the entries that the schema should have too."""

    mine: Schema
    plan: Plan
    news: Schema


class Channel:
    """The agreed schema, which is the same on every rank and grows by agreement only."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.forget()

    def forget(self) -> None:
        """Start over: every rank does this at the same export."""
        self._allowance = 0
        self.learn(Schema(), Schema())

    def learn(self, schema: Schema, mine: Schema) -> None:
        """Agree on a schema; called with the same one on every rank. ``mine`` is what this rank brings.

        What the schema lacks of it was refused; it is left out and not asked for again.
        """
        if schema and not self._allowance:
            self._allowance = max(LIMIT, 2 * len(schema))
        self.schema = schema
        maximum, total = sizes(schema)
        self.capacity = _round_up(maximum), _round_up(total)
        self._refused = mine.minus(schema)
        self._signature: Signature | None = None

    def trim(self) -> None:
        """Forget a schema full of keys that came and went, before what is in use now is agreed on again."""
        if len(self.schema) > self._allowance:
            report_once(
                "reduce:trim",
                f"more than {self._allowance} names of metrics were recorded so far: do names contain a number that "
                f"changes? e.g. {self.schema.summaries[-3:]}",
            )
            self.forget()

    def fit(self, families: Families) -> Fit:
        """How these records fit in; computed anew only if their keys are others than at the last export."""
        brought = signature(families)
        if brought != self._signature:
            mine = Schema.of(families)
            self._fit = Fit(mine, Plan.of(self.schema, mine, self.device), self.news(mine))
            self._signature = brought
        return self._fit

    def news(self, mine: Schema) -> Schema:
        """What the agreed schema lacks and has not refused."""
        return mine.minus(self.schema).minus(self._refused)


def _round_up(size: int) -> int:
    return max(1, math.ceil(size / _BUCKET)) * _BUCKET
