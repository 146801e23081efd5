"""One router whose choices are counted in its forward hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from areal_callbacks.monitors.captured import is_captured
from areal_callbacks.monitors.moe_balance.choices import Block, Choices, Row
from areal_callbacks.monitors.moe_balance.contracts import RUNNING_COUNTS, IndexPlace, expert_indices
from areal_callbacks.monitors.moe_balance.counting import Counter, count
from areal_callbacks.monitors.moe_balance.gates import GateCheck
from areal_callbacks.monitors.moe_balance.routers import Router
from areal_callbacks.monitors.moe_balance.running_counts import RunningCounts, choose_reading
from areal_callbacks.monitors.training_forward import TrainingForward
from areal_callbacks.safety.door import Observer
from areal_callbacks.safety.hooks import Attachments
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import tell_error

HINT = "describe its output with register_router_contract"


class CountedRouter(Observer):
    """Reads what a router chose and adds it to a counter; a router that cannot be read is left out, the others stay.

    Args:
        router: what is counted.
        device: where the model trains.
        forward: tells which forwards train.
        switch: number of its :class:`~areal_callbacks.monitors.moe_balance.counting.CountingSwitch`.
        choices: holds indices until the forward has ended.
        block: of the routers with as many experts.

    Attributes:
        router: as given.
        kind: the class of its module.
        holds_last: its buffer holds the counts of the last forward, as has shown.
    """

    family = "moe_balance"

    def __init__(
        self,
        router: Router,
        device: torch.device,
        *,
        forward: TrainingForward,
        switch: int,
        choices: Choices,
        block: Block,
    ) -> None:
        self.router = router
        self.kind = type(router.module)
        self.holds_last = False
        self.row = Row(block, self.fail)
        self._forward, self._switch, self._choices = forward, switch, choices
        self._check: GateCheck | None = None
        self._attachments = Attachments(self)
        hook, module, device = self._attachments.hook, router.module, _device_of(router.module, device)
        self.counters: list[Counter]
        if router.contract is RUNNING_COUNTS:
            self._running = RunningCounts(router.experts, device)
            self.counters = self._running.counters
            hook(module.register_forward_pre_hook, self._begin_totals)
            # always: what a forward that raises has counted counts
            hook(module.register_forward_hook, self._end_totals, always_call=True, with_kwargs=True)
            return
        self.counters = [Counter(router.experts, device)]
        self._check = GateCheck(module, router.contract) if router.contract.given_to else None
        if router.contract.of == "arguments":
            hook(module.register_forward_pre_hook, self._choice_adder())
        else:  # before other hooks, which may change the output
            hook(module.register_forward_hook, self._choice_adder(), prepend=True)

    def choose(self, taken: Sequence[Tensor]) -> Tensor:
        """The counts, int64 ``[experts + 2]``, of what was taken from the counters."""
        if len(taken) == 1:
            return taken[0]
        cells, self.holds_last = choose_reading(*taken, holds_last=self.holds_last)
        return cells

    def check(self) -> None:
        """Leave this router out, with one message, if its experts were given other tokens than it seems to choose."""
        if self._check is not None and self._check.differs():
            self._check = None
            self.fail(ValueError(f"its experts are not given what the top-{self.router.top_k} of its logits chooses"))

    def detach(self) -> None:
        self._attachments.undo()
        if self._check is not None:
            self._check.detach()

    def fail(self, error: BaseException) -> None:
        """Leave this router out, with one message for its class."""
        if torch.compiler.is_compiling() or is_captured():
            return  # a message would break the graph; an export tells that nothing was counted
        self.failed = True
        router, kind = self.router, self.kind.__name__
        report_once(
            f"moe_balance:unreadable:{kind}", f"no moe_balance of {router.name} ({kind}): {tell_error(error)}; {HINT}"
        )

    def report_out_of_range(self, cells: Tensor) -> None:
        """Say once for its class if it chose an expert that it does not have; cells are int64 ``[experts + 2]``."""
        if int(cells[-1]):
            kind = self.kind.__name__
            report_once(
                f"moe_balance:range:{kind}",
                f"{kind} chose experts beyond its {self.router.experts}: those assignments are left out of moe_balance",
            )

    def _choice_adder(self) -> Callable[..., None]:
        """The hook: one call that returns at once in a forward that does not train."""
        read, counter, switch, forward = self.router.contract.read, self.counters[0], self._switch, self._forward
        keep, row, modes = self._choices.keep, self.row, torch._C._len_torch_dispatch_stack
        read_eagerly = IndexPlace().read if read is expert_indices else read

        def trace(module: nn.Module, outcome: Any) -> None:
            routed = read(module, outcome)
            if routed is not None:
                count(routed, counter, switch)

        def add(module: nn.Module, arguments: Any, output: Any = None) -> None:
            if is_dynamo_compiling() or modes():
                trace(module, arguments if output is None else output)
            elif forward.in_training_call or forward.active:
                routed = read_eagerly(module, arguments if output is None else output)
                if routed is None:
                    raise ValueError("no tensor of expert indices or mask in its output")
                if not forward.in_training_call or not keep(row, routed):
                    count(routed, counter, switch)

        return add

    def _begin_totals(self, module: nn.Module, *_: Any) -> None:
        self._running.begin(_read_totals(module))

    def _end_totals(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        has_tokens = output is not None and any(tensor.numel() for tensor in given)
        self._running.end(_read_totals(module), self._switch, complete=has_tokens)


def _read_totals(module: nn.Module) -> Tensor:
    return cast("Tensor", RUNNING_COUNTS.read(module, None))


def _device_of(module: nn.Module, device: torch.device) -> torch.device:
    """Where a router runs: where an accelerator holds its parameters, else (they may be offloaded) as the rest."""
    own = next((parameter.device for parameter in module.parameters()), device)
    if own.type not in ("cpu", "meta"):
        return own
    return torch.device("cpu") if device.type == "meta" else device
