"""Reports routers that are not called although the model is trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from areal_callbacks.monitors.compilation import runs_compiled
from areal_callbacks.monitors.moe_balance.counted_router import CountedRouter
from areal_callbacks.safety.reporting import report_once

_COMPILED = (
    "compiled code that ran before the metrics were attached keeps running without their hooks: attach before the "
    "first forward, or call torch._dynamo.reset() after attaching"
)
_BYPASSED = (
    "something computes the routing without calling the router modules (a fused kernel, say): moe_balance needs the "
    "modules to be called"
)
_SOME = (
    "its module was exchanged after the metrics were attached, something computes its routing without calling it, or "
    "the data did not need it; its loads read 0"
)
_MOST_NAMES = 8


class UncalledRouters:
    """Names routers that counted nothing in an interval with training forwards, each once."""

    def __init__(self) -> None:
        self._named: set[int] = set()

    def report(self, taken: Sequence[tuple[CountedRouter, Tensor]], models: Iterable[nn.Module]) -> None:
        """Look at one interval.

        Args:
            taken: every router with what it counted, int64 ``[experts + 2]``.
            models: that are observed.
        """
        uncalled = [counted for counted, cells in taken if not counted.failed and not bool(cells.any())]
        if uncalled and len(uncalled) == len(taken):
            cause = _COMPILED if any(map(_is_compiled, models)) else _BYPASSED
            report_once(
                "moe_balance:uncalled", f"no router was called in the training forwards since the last export; {cause}"
            )
        elif fresh := [counted for counted in uncalled if id(counted) not in self._named]:
            self._named.update(map(id, fresh))
            names = _list_names(fresh)
            problem = f"not called in training forwards that called others: {names}; {_SOME}"
            report_once(f"moe_balance:uncalled:{names}", problem)


def _list_names(routers: Sequence[CountedRouter]) -> str:
    names = [counted.router.name for counted in routers]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _is_compiled(model: nn.Module) -> bool:
    return any(
        runs_compiled(module) or hasattr(module, "_torchdynamo_orig_callable") for module in model.modules()
    ) or any(type(module).__name__ == "OptimizedModule" for module in model.modules())
