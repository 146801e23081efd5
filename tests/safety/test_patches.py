"""Wrapping attributes, and putting everything back."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import types
import weakref

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


class Other(Host):
    """Inherits what is wrapped."""


def test_a_wrapped_object_is_left_as_it_was_and_freed_by_its_count():
    host, patches = Host(), Patches("test")
    before, reference = dict(vars(host)), weakref.ref(host)
    gc.disable()
    try:
        patches.wrap(host, "step", doubled)
        assert vars(host) == before
        assert host.step(3) == 6
        del host
        assert reference() is None
    finally:
        gc.enable()
    patches.undo()
    assert Host().step(3) == 3


def test_a_wrap_of_one_object_leaves_others_of_its_class_alone():
    mine, same, heir = Host(), Host(), Other()
    patches = Patches("test")
    patches.wrap(mine, "step", doubled)
    assert [each.step(1) for each in (mine, same, heir)] == [2, 1, 1]
    patches.wrap(heir, "step", plus_one)
    assert [each.step(1) for each in (mine, same, heir, Other())] == [2, 1, 2, 1]
    patches.undo()
    assert "step" not in vars(Other)


def test_others_of_a_class_see_what_replaces_an_inherited_method(monkeypatch):
    mine, other = Other(), Other()
    patches = Patches("test")
    patches.wrap(mine, "step", doubled)
    monkeypatch.setattr(Host, "step", lambda self, value: 10 * value)
    assert (mine.step(1), other.step(1)) == (2, 10)
    patches.undo()
    assert mine.step(1) == 10


def test_a_call_of_the_parents_method_is_not_wrapped_twice():
    class Heir(Host):
        def step(self, value, *, add=0):
            return super().step(value, add=add) + 100

    mine, base = Heir(), Host()
    patches = Patches("test")
    patches.wrap(mine, "step", doubled)
    patches.wrap(base, "step", plus_one)
    assert (mine.step(1), base.step(1), Host.step(base, 1)) == (202, 2, 2)
    patches.undo()


def test_the_end_of_what_wraps_undoes_its_wraps():
    module, host = types.ModuleType("m"), Host()
    module.f = original = lambda: 1
    before = dict(vars(Host))
    for _ in range(3):
        patches = Patches("test")
        patches.wrap(module, "f", doubled)
        patches.wrap(host, "step", doubled)
        patches.wrap(host, "own", doubled)
        assert (module.f(), host.step(1), host.own(1)) == (2, 2, 2)
        del patches
        assert (module.f, host.step(1), host.own(1)) == (original, 1, 1)
    assert dict(vars(Host)) == before


@pytest.mark.parametrize("oldest", [0, -1])
def test_a_thousand_objects_leave_their_class_as_it_was(oldest):
    """Three at a time; many more would make calls too deep if any of those that ended stayed."""
    before, owners = vars(Host)["step"], []
    hosts = [Host() for _ in range(2000)]
    for host in hosts:
        owners.append(Patches("test"))
        owners[-1].wrap(host, "step", doubled)
        assert host.step(1) == 2
        if len(owners) > 2:
            owners.pop(oldest).undo()
    while owners:
        owners.pop(0).undo()
    assert vars(Host)["step"] is before


def test_objects_without_a_hash_can_be_wrapped():
    @dataclasses.dataclass
    class Settings:
        depth: int = 1

        def double(self):
            return self.depth

    mine, other = Settings(), Settings()
    patches = Patches("test")
    patches.wrap(mine, "double", doubled)
    assert (mine.double(), other.double()) == (2, 1)
    patches.undo()
