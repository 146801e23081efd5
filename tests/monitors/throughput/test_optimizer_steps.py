"""Every real step of an optimizer once, also where its class calls its parent's step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from areal_callbacks.monitors.throughput.optimizer_steps import OptimizerSteps


class Child(torch.optim.SGD):
    """Calls its parent's step, which torch hooks as well."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            raise RuntimeError("planted")
        return super().step(closure)


def observed(kind):
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)  # torch hooks a class's step when it is first instantiated
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    events: list[str] = []
    optimizer = kind([parameter], 0.1)
    steps = OptimizerSteps(optimizer, lambda: events.append("begin"), lambda: events.append("end"))
    return optimizer, events, steps


@pytest.mark.parametrize("kind", [torch.optim.SGD, Child])
def test_a_step_is_one_step(kind):
    optimizer, events, steps = observed(kind)
    for _ in range(3):
        optimizer.step()
    assert events == ["begin", "end"] * 3
    steps.detach()
    optimizer.step()
    assert events == ["begin", "end"] * 3
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_step_that_raised_does_not_hide_the_next():
    optimizer, events, _ = observed(Child)
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="planted"):
        optimizer.step()
    optimizer.fails = False
    optimizer.step()
    optimizer.step(lambda: None)
    assert events == ["begin", "begin", "end", "begin", "end"]


def test_a_wrapper_is_looked_through():
    optimizer, events, _ = observed(torch.optim.SGD)

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.optimizer = inner

    begun: list[str] = []
    OptimizerSteps(Wrapper(optimizer), None, lambda: begun.append("end"))
    optimizer.step()
    assert begun == ["end"]
    assert events == ["begin", "end"]
