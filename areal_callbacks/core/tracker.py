"""The named accumulator that training code records into; a drop-in for AReaL's distributed stats tracker."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch import Tensor

from areal_callbacks.core.accumulator import Accumulator
from areal_callbacks.core.formulas import Formula, FormulaSums
from areal_callbacks.core.records import Records, output_names
from areal_callbacks.core.reduce import reduce
from areal_callbacks.core.scope import Scope
from areal_callbacks.core.summary import summarise
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

    Args:
        name: the tracker's name; every key starts with ``<name>/``. Empty for the default tracker.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name.strip("/")
        self._root = f"{self.name}/" if self.name else ""
        self._scope = Scope()
        self._lock = threading.Lock()
        self._masks: dict[str, Tensor] = {}
        self._accumulator = Accumulator()
        self._formula_sums = FormulaSums()

    # -- recording

    def scalar(self, /, **values: float | Tensor) -> None:
        """Record numbers; each exports its mean and, under ``<key>__count``, how many there were.

        A one-element tensor is taken too and stays on its device until the export.

        Raises:
            ValueError: a value is not a real number, or the key is in use for another kind; nothing is recorded then.
        """
        prefix = self._root + self._scope.prefix
        with self._lock:
            self._accumulator.add_scalars(prefix, values)

    def denominator(self, /, **masks: Tensor) -> None:
        """Define boolean masks for the following :meth:`stat` calls; each exports its number of true elements.

        Raises:
            ValueError: a mask is not a boolean tensor, or the key is in use for another kind.
        """
        prefix = self._root + self._scope.prefix
        for name, mask in masks.items():
            _check_mask(mask, name)
        rows = {prefix + name: _summary(mask, mask, ReduceType.DENOMINATOR) for name, mask in masks.items()}
        with self._lock:
            self._accumulator.add_rows(ReduceType.DENOMINATOR, rows)
            self._masks.update({prefix + name: mask.detach() for name, mask in masks.items()})

    def stat(self, denominator: str, reduce_type: ReduceType | None = None, **tensors: Tensor) -> None:
        """Record tensors over the latest mask of a denominator, looked up through the enclosing scopes.

        Args:
            denominator: the name given to :meth:`denominator` in this scope or one around it.
            reduce_type: AVG_MIN_MAX if not given.
            **tensors: real tensors of exactly the mask's shape, any floating or integer dtype.

        Raises:
            ValueError: unknown denominator, another shape, or a key in use for another kind; nothing is recorded then.
        """
        self.stat_compact(self._mask_of(denominator), reduce_type, **tensors)

    def stat_compact(self, mask: Tensor, reduce_type: ReduceType | None = None, **tensors: Tensor) -> None:
        """Record tensors over a mask given directly; like :meth:`stat` without a named denominator."""
        kind = ReduceType.AVG_MIN_MAX if reduce_type is None else reduce_type
        if kind not in _TENSOR_KINDS:
            choices = ", ".join(choice.name for choice in _TENSOR_KINDS)
            raise ValueError(f"reduce_type must be one of {choices}, got {reduce_type!r}")
        _check_mask(mask, "mask")
        for name, tensor in tensors.items():
            _check_values(tensor, mask, name)
        prefix = self._root + self._scope.prefix
        rows = {prefix + name: _summary(tensor, mask, kind) for name, tensor in tensors.items()}
        with self._lock:
            self._accumulator.add_rows(kind, rows)

    def summaries(self, reduce_type: ReduceType, **rows: Tensor) -> None:
        """Record ready summaries: float64 rows ``[4]`` of (sum, count, minimum, maximum), for metrics that compute
        their own populations in one pass over the data."""
        for name, row in rows.items():
            if row.shape != (4,) or row.dtype != torch.float64:
                raise ValueError(f"summary {name!r} must be a float64 tensor of shape [4], got {row.dtype} {row.shape}")
        prefix = self._root + self._scope.prefix
        with self._lock:
            self._accumulator.add_rows(reduce_type, {prefix + name: row.detach() for name, row in rows.items()})

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

    @contextlib.contextmanager
    def record_timing(self, key: str) -> Iterator[None]:
        """Record the wall-clock seconds of the block as the scalar ``timeperf/<key>``, whatever the scope and name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            with self._lock:
                self._accumulator.add_scalars(TIMING_PREFIX, {key: seconds})

    # -- scopes

    def scope(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Put ``name/`` before every key recorded inside the block by this thread or coroutine."""
        return self._scope.enter(name)

    def disable_scope(self) -> contextlib.AbstractContextManager[None]:
        """Record inside the block without any scope (a named tracker keeps its name)."""
        return self._scope.disabled()

    def scope_func_wrapper(self, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function or coroutine function so that its body runs inside ``scope(name)``."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def scoped_coroutine(*args: P.args, **kwargs: P.kwargs) -> object:
                    with self.scope(name):
                        return await function(*args, **kwargs)

                return scoped_coroutine  # type: ignore[return-value]

            @functools.wraps(function)
            def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.scope(name):
                    return function(*args, **kwargs)

            return scoped

        return decorate

    # -- export

    def export(
        self, key: str | None = None, reduce_group: ProcessGroup | None = None, reset: bool = True
    ) -> dict[str, float]:
        """Reduce what was recorded and return it as plain numbers.

        With a group this is a collective: every rank of the group calls it, also one that recorded nothing, and all get
        the same result.

        Args:
            key: only this key, named as in the recording call of the current scope (``timeperf/…`` ignores the scope);
                the rest stays.
            reduce_group: the ranks to reduce over; None for this process alone.
            reset: start over for what was exported.
        """
        if key is not None and not key.startswith(TIMING_PREFIX):
            key = self._root + self._scope.prefix + key
        records = self.collect(key=key, reset=reset)
        reduced = reduce({"stats": records}, reduce_group, channel=f"tracker:{self.name}")
        return reduced["stats"].metrics() if "stats" in reduced else {}

    def collect(self, *, key: str | None = None, reset: bool = True) -> Records:
        """This rank's records, not reduced. ``key`` is a full key."""
        with self._lock:
            records = self._accumulator.take(key, reset)
            records.sums = self._formula_sums.take(key, reset)
            return records

    def _mask_of(self, denominator: str) -> Tensor:
        with self._lock:
            for prefix in self._scope.enclosing():
                mask = self._masks.get(self._root + prefix + denominator)
                if mask is not None:
                    return mask
            known = ", ".join(sorted(self._masks)) or "none yet"
        raise ValueError(f"unknown denominator {denominator!r}; call denominator() first (defined: {known})")


_TENSOR_KINDS = (ReduceType.AVG_MIN_MAX, ReduceType.AVG, ReduceType.SUM, ReduceType.MIN, ReduceType.MAX)


def _check_mask(mask: Tensor, name: str) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"denominator {name!r} must be a boolean tensor, got {got}")


def _check_values(values: Tensor, mask: Tensor, name: str) -> None:
    if not isinstance(values, Tensor) or values.is_complex():
        got = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"stat {name!r} must be a real tensor, got {got}")
    if values.shape != mask.shape:
        raise ValueError(f"stat {name!r} has shape {list(values.shape)}, its mask {list(mask.shape)}")


def _summary(values: Tensor, mask: Tensor, kind: ReduceType) -> Tensor:
    """The summary of one tensor, on its device if that has float64."""
    values = values.detach()
    if values.device.type == "mps":
        values = values.cpu()
    # A copy to the host that does not wait would be read before it is complete.
    return summarise(values, mask.to(values.device, non_blocking=values.device.type != "cpu"), kind)


__all__ = ["TIMING_PREFIX", "ReduceType", "StatsTracker", "output_names"]
