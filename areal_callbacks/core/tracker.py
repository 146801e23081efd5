"""The named accumulator that training code records into; a drop-in for AReaL's distributed stats tracker."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch import Tensor

from areal_callbacks.core.accumulator import Accumulator
from areal_callbacks.core.formulas import Formula, FormulaSums
from areal_callbacks.core.grouped import split
from areal_callbacks.core.grouped_export import export_grouped
from areal_callbacks.core.groups import Group, OwnGroup, as_group, export_groups
from areal_callbacks.core.masks import Masks
from areal_callbacks.core.records import Records, output_names
from areal_callbacks.core.scope import Scope, ScopeBlock
from areal_callbacks.core.stat_rows import check_mask, count_rows, stat_rows, tensor_kind
from areal_callbacks.core.timing import Timing
from areal_callbacks.core.types import ReduceType

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

P = ParamSpec("P")
R = TypeVar("R")

TIMING_PREFIX = "timeperf/"


class StatsTracker:
    """Accumulates named scalars and masked tensors until they are exported.

    Every recording call is folded into one summary per key at once, so memory does not grow with batches or tokens, and
    nothing waits for the device. Scopes belong to the current thread or coroutine; recording is thread-safe.

    The recording calls take ``reduce_group``: the ranks that an export reduces these keys over, whatever its own group
    is. All members of the group take part in the export. It holds for the key until the next export; the last one given
    counts.

    Args:
        name: the tracker's name; every key starts with ``<name>/``. Empty for the default tracker.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name.strip("/")
        self._root = f"{self.name}/" if self.name else ""
        self._scope = Scope()
        self._lock = threading.Lock()
        self._masks = Masks()
        self._groups: dict[str, Group] = {}
        self._accumulator = Accumulator()
        self._formula_sums = FormulaSums()

    # -- recording

    def scalar(self, /, *, reduce_group: OwnGroup = None, **values: float | Tensor) -> None:
        """Record numbers; each exports its mean and, under ``<key>__count``, how many there were.

        A one-element tensor is taken too and stays on its device until the export.

        Raises:
            ValueError: a value is not a real number, or the key is in use for another kind; nothing is recorded then.
        """
        prefix = self._root + self._scope.prefix
        own = _own_group(reduce_group)
        with self._lock:
            self._accumulator.add_scalars(prefix, values)
            for group in own:
                self._groups.update({prefix + name: group for name in values})

    def denominator(self, /, *, reduce_group: OwnGroup = None, **masks: Tensor) -> None:
        """Define boolean masks for the following :meth:`stat` calls; each exports its number of true elements.

        The masks are copied. An export forgets them.

        Raises:
            ValueError: a mask is not a boolean tensor, or the key is in use for another kind.
        """
        for name, mask in masks.items():
            check_mask(mask, name)
        prefix, own = self._root + self._scope.prefix, _own_group(reduce_group)
        rows = count_rows(prefix, masks)
        with self._lock:
            self._add(ReduceType.DENOMINATOR, rows, own)
            self._masks.add({prefix + name: mask for name, mask in masks.items()})

    def stat(
        self,
        /,
        denominator: str,
        reduce_type: ReduceType | None = None,
        *,
        reduce_group: OwnGroup = None,
        **tensors: Tensor,
    ) -> None:
        """Record tensors over a mask of a denominator, looked up through the enclosing scopes.

        The i-th call for a key since the last export takes the i-th mask of its denominator, or the latest if there are
        fewer; :mod:`areal_callbacks.core.masks` tells how long a mask is kept.

        Args:
            denominator: the name given to :meth:`denominator` in this scope or one around it.
            reduce_type: AVG_MIN_MAX if not given.
            reduce_group: the ranks to reduce these keys over, if not those of the export.
            **tensors: real tensors of exactly the mask's shape, any floating or integer dtype.

        Raises:
            ValueError: no such denominator since the last export, another shape, or a key in use for another kind;
                nothing is recorded then.
        """
        kind, own = tensor_kind(reduce_type), _own_group(reduce_group)
        prefix = self._root + self._scope.prefix
        with self._lock:
            found = self._denominator(denominator)
            masks = {name: self._masks.next_of(found, prefix + name) for name in tensors}
            self._add(kind, stat_rows(prefix, tensors, masks, kind), own)
            self._masks.use(found, [prefix + name for name in tensors])

    def stat_compact(
        self,
        /,
        mask: Tensor,
        reduce_type: ReduceType | None = None,
        *,
        reduce_group: OwnGroup = None,
        **tensors: Tensor,
    ) -> None:
        """Record tensors over a mask given directly; like :meth:`stat` without a named denominator."""
        kind, own = tensor_kind(reduce_type), _own_group(reduce_group)
        check_mask(mask, "mask")
        rows = stat_rows(self._root + self._scope.prefix, tensors, dict.fromkeys(tensors, mask), kind)
        with self._lock:
            self._add(kind, rows, own)

    def summaries(self, reduce_type: ReduceType, **rows: Tensor) -> None:
        """Record ready summaries: float64 rows ``[4]`` of (sum, count, minimum, maximum), for metrics that compute
        their own populations in one pass over the data."""
        for name, row in rows.items():
            if row.shape != (4,) or row.dtype != torch.float64:
                raise ValueError(f"summary {name!r} must be a float64 tensor of shape [4], got {row.dtype} {row.shape}")
        prefix = self._root + self._scope.prefix
        with self._lock:
            self._add(reduce_type, {prefix + name: row.detach() for name, row in rows.items()})

    def sums(self, formula: Formula, sums: Tensor, name: str = "") -> None:
        """Add sums from which an export derives metrics, named below ``name`` in the current scope.

        Raises:
            ValueError: not a float64 tensor of shape ``[formula.width]``.
        """
        if sums.shape != (formula.width,) or sums.dtype != torch.float64:
            shape = list(sums.shape)
            raise ValueError(f"{formula.path} takes float64 sums of shape [{formula.width}], got {sums.dtype} {shape}")
        key = (self._root + self._scope.prefix + name).rstrip("/")
        with self._lock:
            self._formula_sums.add(formula, key, sums)

    def record_timing(self, key: str) -> Timing:
        """Record the wall-clock seconds of the block as the scalar ``timeperf/<key>``, whatever the scope and name."""
        return Timing(self._record_seconds, key)

    def _record_seconds(self, key: str, seconds: float) -> None:
        with self._lock:
            self._accumulator.add_scalars(TIMING_PREFIX, {key: seconds})

    # -- scopes

    def scope(self, name: str) -> ScopeBlock:
        """Put ``name/`` before every key recorded inside the block by this thread or coroutine.

        The object can be entered again, also inside itself.
        """
        return self._scope.enter(name)

    def disable_scope(self) -> ScopeBlock:
        """Record inside the block without any scope (a named tracker keeps its name)."""
        return self._scope.disabled()

    def scope_func_wrapper(self, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function or coroutine function so that its body runs inside ``scope(name)``."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def call_coroutine(*args: P.args, **kwargs: P.kwargs) -> object:
                    with self.scope(name):
                        return await function(*args, **kwargs)

                return call_coroutine  # type: ignore[return-value]

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.scope(name):
                    return function(*args, **kwargs)

            return call

        return decorate

    # -- export

    def export(
        self,
        key: str | None = None,
        reduce_group: ProcessGroup | None = None,
        reset: bool = True,
        key_sync_group: ProcessGroup | None = None,
    ) -> dict[str, float]:
        """Reduce what was recorded and return it as plain numbers.

        With a group this is a collective: every rank of the group calls it, also one that recorded nothing, and all get
        the same result. Keys that were recorded with a group of their own are reduced over that; the members that are
        in ``reduce_group`` or ``key_sync_group`` need not have recorded them.

        Args:
            key: only this key, named as in the recording call of the current scope (``timeperf/…`` ignores the scope);
                the rest stays. A key that nobody recorded is NaN with a count of 0.
            reduce_group: the ranks to reduce over; None for this process alone.
            reset: start over for what was exported; masks are forgotten too.
            key_sync_group: ranks that all export the same keys, at least those of ``reduce_group``. A key that only
                ranks of other groups recorded is NaN, or 0 for a sum or count.

        Raises:
            ValueError: ``key_sync_group`` lacks a rank of ``reduce_group``; nothing is exported then.
        """
        if key is not None and not key.startswith(TIMING_PREFIX):
            key = self._root + self._scope.prefix + key
        groups = export_groups(reduce_group, key_sync_group)
        return export_grouped(self.collect(key=key, reset=reset), *groups, f"tracker:{self.name}", key)

    def collect(self, *, key: str | None = None, reset: bool = True) -> Records:
        """This rank's records, not reduced. ``key`` is a full key."""
        with self._lock:
            records = self._accumulator.take(key, reset)
            records.sums = self._formula_sums.take(key, reset)
            records = split(records, self._groups)
            if reset:
                self._forget(key)
            return records

    def _forget(self, key: str | None) -> None:
        if key is None:
            self._masks, self._groups = Masks(), {}
        else:
            self._masks.forget(key)
            self._groups.pop(key, None)

    def _add(self, kind: ReduceType, rows: Mapping[str, Tensor], own: Sequence[Group] = ()) -> None:
        self._accumulator.add_rows(kind, rows)
        for group in own:
            self._groups.update(dict.fromkeys(rows, group))

    def _denominator(self, name: str) -> str:
        found = self._masks.find(self._root + prefix + name for prefix in self._scope.enclosing())
        if found is None:
            known = ", ".join(self._masks.denominators) or "none since the last export"
            raise ValueError(f"unknown denominator {name!r}; call denominator() first (defined: {known})")
        return found


def _own_group(group: OwnGroup) -> Sequence[Group]:
    """The group of some keys, or nothing for that of the export."""
    return () if group is None else (as_group(group),)


__all__ = ["TIMING_PREFIX", "ReduceType", "StatsTracker", "output_names"]
