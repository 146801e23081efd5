"""Stands for the throughput monitor where nothing is attached yet, or throughput is switched off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_callbacks.monitors.consumers import Kind
from areal_callbacks.monitors.forward_call import ForwardCall


class NullThroughput:
    """Takes every event of :class:`~areal_callbacks.monitors.throughput.monitor.ThroughputMonitor`; does nothing."""

    running = has_work = False
    rules = ""

    def begin(self, *, trains: bool = True) -> None: ...

    def end(self) -> None: ...

    def may_end(self) -> None: ...

    def leave_gap(self) -> bool:
        return False

    def enter_gap(self) -> None: ...

    def forget_gap(self) -> None: ...

    def expect_optimizer(self, *, may_skip: bool = False) -> None: ...

    def optimizer_begin(self) -> None: ...

    def optimizer_end(self) -> None: ...

    def optimizer_skipped(self) -> None: ...

    def count(self, lengths: Any) -> None: ...

    def count_inputs(self, inputs: Mapping[str, Any]) -> None: ...

    def on_consumed(self, kind: Kind, call: ForwardCall) -> None: ...

    def on_embedded(self, call: ForwardCall) -> None: ...

    def on_outermost(self, call: ForwardCall, *, has_models: bool) -> None: ...

    def leave_out_flops(self) -> None: ...

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
