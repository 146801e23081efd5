"""Wrapping attributes, and putting everything back."""

from __future__ import annotations

import copy
import pickle
import types

import pytest
import torch

from areal_callbacks.safety.door import Result
from areal_callbacks.safety.patches import Patches


class Host:
    def __init__(self):
        self.own = lambda value: value

    def step(self, value, *, add=0):
        """Doc."""
        return value + add


def doubled(*args, **kwargs):
    result = yield
    return Result(2 * result)


def zeroed(x):
    result = yield
    return Result(result * 0)


def plus_one(*args, **kwargs):
    result = yield
    return Result(result + 1)


@pytest.fixture
def host():
    return Host()


def test_a_wrapped_method_calls_around_with_the_original(host):
    patches = Patches("test")
    patches.wrap(host, "step", doubled)
    assert host.step(3, add=1) == 8
    assert (host.step.__name__, host.step.__doc__) == ("step", "Doc.")
    assert Host().step(3) == 3
    assert len(patches) == 1


def test_undo_restores_the_class_attribute_and_the_instance_attribute(host):
    before = dict(vars(host))
    patches = Patches("test")
    for name in ("step", "own"):
        patches.wrap(host, name, doubled)
    assert host.own(1) == 2
    patches.undo()
    patches.undo()
    assert vars(host) == before
    assert len(patches) == 0


def test_modules_can_be_wrapped():
    module = types.ModuleType("m")
    module.f = lambda: 1
    original = module.f
    patches = Patches("test")
    patches.wrap(module, "f", doubled)
    assert module.f() == 2
    patches.undo()
    assert module.f is original


def test_the_forward_of_a_torch_module_can_be_wrapped():
    linear = torch.nn.Linear(2, 2)
    patches = Patches("test")
    patches.wrap(linear, "forward", zeroed)
    assert linear(torch.ones(1, 2)).tolist() == [[0.0, 0.0]]
    patches.undo()
    assert "forward" not in vars(linear)


def test_two_wraps_of_one_attribute_are_undone_in_reverse(host):
    patches = Patches("test")
    patches.wrap(host, "step", doubled)
    patches.wrap(host, "step", plus_one)
    assert host.step(3) == 7
    patches.undo()
    assert host.step(3) == 3
    assert "step" not in vars(host)


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_owners_of_patches_may_leave_in_any_order(host, first_out):
    owners = [Patches("test"), Patches("test")]
    for owner in owners:
        owner.wrap(host, "step", doubled)
    assert host.step(1) == 4
    owners[first_out].undo()
    assert host.step(1) == 2
    owners[1 - first_out].undo()
    assert host.step(1) == 1


def test_somebody_elses_wrapper_survives_and_ours_becomes_a_pass_through(host):
    patches = Patches("test")
    patches.wrap(host, "step", doubled)
    ours = host.step
    host.step = lambda value: ours(value) + 100
    patches.undo()
    assert host.step(1) == 101


def test_exceptions_of_the_original_pass_unchanged(host):
    error = KeyError("mine")

    def fail():
        raise error

    host.own = fail
    Patches("test").wrap(host, "own", doubled)
    with pytest.raises(KeyError) as caught:
        host.own()
    assert caught.value is error


def test_a_missing_attribute_is_an_error_and_nothing_is_wrapped(host):
    patches = Patches("test")
    with pytest.raises(AttributeError):
        patches.wrap(host, "nothing", doubled)
    assert len(patches) == 0
    assert "nothing" not in vars(host)


def test_a_copied_or_pickled_owner_gets_its_bare_original():
    host, patches = torch.nn.Linear(2, 2), Patches("test")
    patches.wrap(host, "extra_repr", doubled)
    for other in (copy.deepcopy(host), pickle.loads(pickle.dumps(host))):
        assert other.extra_repr() == torch.nn.Linear(2, 2).extra_repr()
        assert other.extra_repr.__self__ is other
    assert host.extra_repr() == 2 * torch.nn.Linear(2, 2).extra_repr()
    patches.undo()
    assert "extra_repr" not in vars(host)


def test_a_method_wrapped_on_its_class_is_bound():
    patches = Patches("test")
    patches.wrap(Host, "step", doubled)
    try:
        assert Host().step(3, add=1) == 8
    finally:
        patches.undo()
    assert Host().step(3) == 3


def test_wraps_that_end_out_of_order_leave_nothing_behind(host):
    owners = [Patches("first"), Patches("second")]
    for owner in owners:
        owner.wrap(host, "step", doubled)
    for owner in owners:
        owner.undo()
    assert "step" not in vars(host)
