"""Optimizers that are not what torch's own are, and train all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class Untorched:
    """No torch class, as Lightning's protocol allows: gradient descent with everything that hosts ask for."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.1) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": lr}]
        self.defaults: dict[str, Any] = {"lr": lr}
        self.state: dict[Any, Any] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter -= self.param_groups[0]["lr"] * parameter.grad
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Uninitialised(Untorched, torch.optim.Optimizer):  # type: ignore[misc]
    """A torch class that never calls ``super().__init__()``: it has none of torch's tables of hooks."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__
