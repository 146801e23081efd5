"""How the ranks of a group come to one schema, at a cost that does not grow with their number.

Nearly always all ranks want the same keys, and a MAX of four numbers shows it: ``(h, -h)`` of a hash agree in their
absolute values only if every rank has the same hash. Otherwise each rank puts the hash of what it wants into its place
of one vector (8 bytes a rank), each *distinct* schema is sent once, by the first rank that has it, and everybody forms
the same union. All of this is MAX: it needs no objects, and unlike a broadcast or a gather, which NCCL runs as a ring,
its latency grows with the logarithm of the number of ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from areal_callbacks.core.schema import Schema
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import tell_error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

LIMIT = 1 << 20
"""Bytes of distinct schemas that one agreement sends; the most common one is always among them."""


_NOTHING = -1.0
"""In place of a hash: this rank wants nothing."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of a group, and the device on which they reduce."""

    group: ProcessGroup
    device: torch.device

    def maximum(self, values: Tensor) -> Tensor:
        """The elementwise maximum over all ranks, on the CPU: a collective."""
        values = values.to(self.device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        return values.cpu()


def agree(wanted: Schema, ranks: Ranks) -> Schema | None:
    """The union of what the ranks want: a collective; all ranks return the same.

    It lacks the rarest schemas if together they have more than :data:`LIMIT` bytes. ``wanted`` must be encodable, which
    the caller tries before the first collective.

    Returns:
        None, on every rank, if a rank could not form the union.
    """
    common = _common(wanted, ranks)
    return _common(_unite(wanted, ranks), ranks) if common is None else common


def _common(wanted: Schema, ranks: Ranks) -> Schema | None:
    """What every rank wants if that is the same, though perhaps in another order; else None."""
    hashes = wanted.identity, wanted.ordered.identity
    signed = [sign * value for value in hashes for sign in (1.0, -1.0)]
    highest, lowest, highest_ordered, lowest_ordered = ranks.maximum(_numbers(signed)).tolist()
    if highest == -lowest:
        return wanted
    return wanted.ordered if highest_ordered == -lowest_ordered else None


class _Sent(NamedTuple):
    """The distinct schemas that fit into the limit, encoded, the most common first.

    ``left_out``: how many do not fit; told only to the first rank that wants one of those, so that one rank says so.
    """

    schemas: Iterator[bytes]
    left_out: int


def _unite(wanted: Schema, ranks: Ranks) -> Schema:
    """The union of the distinct schemas; what this rank wants if it cannot form it, so that the ranks do not agree."""
    sent = _send(wanted.ordered, ranks)
    try:
        union = Schema.union_of(map(Schema.decode, sent.schemas))
    except Exception as error:  # noqa: BLE001 - the other ranks are waiting in the next collective
        report_once("reduce:union", f"could not read the keys of other ranks: {tell_error(error)}")
        return wanted
    if sent.left_out:
        _report_left_out(sent.left_out, wanted.minus(union))
    return union


def _send(wanted: Schema, ranks: Ranks) -> _Sent:
    """Each distinct schema once, by its owner."""
    owners, encoded = _owners(wanted, ranks), wanted.encode()
    mine = [owner == dist.get_rank(ranks.group) for owner in owners]
    sizes = ranks.maximum(_numbers([len(encoded) * here for here in mine])).long().tolist()
    ends = list(_within_limit(sizes))
    sent = torch.zeros(ends[-1], dtype=torch.uint8, device="cpu")
    for start, end in itertools.compress(zip([0, *ends], ends), mine):
        sent[start:end] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    received = ranks.maximum(sent).numpy().tobytes()
    schemas = (received[start:end] for start, end in zip([0, *ends], ends))
    return _Sent(schemas, len(sizes) - len(ends) if any(mine[len(ends) : len(ends) + 1]) else 0)


def _report_left_out(schemas: int, names: Schema) -> None:
    report_once(
        "reduce:left out",
        f"too many names of metrics that only few ranks record: {schemas} different lists of names are left out, e.g. "
        f"{names.summaries[:3]} of this rank",
    )


def _owners(wanted: Schema, ranks: Ranks) -> list[int]:
    """The rank that sends each distinct schema, in the order in which they are sent."""
    size = dist.get_world_size(ranks.group)
    hashes = torch.full((size,), _NOTHING, dtype=torch.float64, device="cpu")
    if wanted:
        hashes[dist.get_rank(ranks.group)] = wanted.identity
    values, schema_of, counts = torch.unique(ranks.maximum(hashes), return_inverse=True, return_counts=True)
    first = torch.full_like(counts, size).scatter_reduce(0, schema_of, torch.arange(size, device="cpu"), "amin")
    order = counts.argsort(descending=True, stable=True)
    owners: list[int] = first[order][values[order] != _NOTHING].tolist()
    return owners


def _within_limit(sizes: Iterable[int]) -> Iterator[int]:
    """Where the parts of these sizes end, as long as they end within the limit; the first in any case."""
    for index, end in enumerate(itertools.accumulate(sizes)):
        if end > LIMIT and index:
            return
        yield end


def _numbers(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")
