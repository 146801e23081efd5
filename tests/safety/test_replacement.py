"""What replaces a method is a method: whoever inspects, binds, copies or pickles it finds what was there before."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import subprocess
import sys
import typing
import weakref
from types import FunctionType

import cloudpickle
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from areal_callbacks.safety.patches import Patches


class Steps:
    """Records what a wrap saw."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def around(self, *args: object, **kwargs: object) -> typing.Generator[None, object, None]:
        self.calls.append(args)
        yield


class Host(nn.Module):
    def training_step(self, batch: int, batch_idx: int = 0) -> int:
        """Doc."""
        return batch + batch_idx

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def decorated(self, batch: int, *, scale: int = 2) -> int:
        return batch * scale


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def host(steps: Steps) -> typing.Iterator[Host]:
    host, patches = Host(), Patches("test")
    patches.wrap(host, "training_step", steps.around)
    patches.wrap(host, "decorated", steps.around)
    yield host
    patches.undo()


def first_link(function: object) -> object:
    """What a reader finds that follows one link of the chain of decorators."""
    return getattr(function, "__wrapped__", function)


@pytest.mark.parametrize("name", ["training_step", "decorated"])
def test_it_is_a_bound_method_of_the_owner(host: Host, name: str) -> None:
    method, original = getattr(host, name), getattr(Host(), name)
    assert inspect.ismethod(method)
    assert method.__self__ is host
    assert isinstance(method.__func__, FunctionType)
    assert (method.__name__, method.__doc__, method.__module__) == (name, original.__doc__, original.__module__)
    assert method.__code__ is method.__func__.__code__


@pytest.mark.parametrize("name", ["training_step", "decorated"])
def test_signatures_and_hints_read_as_before_in_every_way(host: Host, name: str) -> None:
    method, original = getattr(host, name), getattr(Host(), name)
    assert inspect.signature(method) == inspect.signature(original)
    assert typing.get_type_hints(method) == typing.get_type_hints(original)
    assert inspect.unwrap(method.__func__) is inspect.unwrap(original.__func__)
    arguments = inspect.getfullargspec(first_link(method)).args
    assert arguments == inspect.getfullargspec(first_link(original)).args
    assert "batch" in arguments
    assert inspect.getsource(method) == inspect.getsource(original)


def test_whoever_binds_the_function_again_comes_through_the_wrap(host: Host, steps: Steps) -> None:
    assert host.training_step.__func__(host, 3) == 3
    assert host.training_step.__func__.__get__(host, Host)(4, batch_idx=1) == 5
    assert steps.calls == [(3,), (4,)]


def test_a_scheduler_made_after_the_wrap_counts_and_is_counted(steps: Steps) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    patches = Patches("test")
    patches.wrap(optimizer, "step", steps.around)
    scheduler = StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert len(steps.calls) == 1
    assert scheduler.get_last_lr() == [0.05]
    patches.undo()
    optimizer.step()
    assert len(steps.calls) == 1
    pickle.dumps(optimizer)


def test_copies_and_pickles_have_the_bare_method(host: Host, steps: Steps) -> None:
    for other in (copy.deepcopy(host), pickle.loads(pickle.dumps(host))):
        assert other.training_step(1) == 1
        assert other.decorated(1, scale=3) == 3
    assert steps.calls == []
    assert host.training_step(1) == 1
    assert steps.calls == [(1,)]


def test_a_method_whose_function_has_another_name_is_pickled_too(steps: Steps) -> None:
    host = pickle.loads(pickle.dumps(Renamed()))
    Patches("test").wrap(host, "run", steps.around)
    assert pickle.loads(pickle.dumps(host)).run(2) == 4


def doubled(function):  # without functools.wraps
    def wrapper(self, value):
        return 2 * function(self, value)

    return wrapper


class Renamed:
    @doubled
    def run(self, value):
        return value


def test_a_weak_method_lives_as_long_as_its_owner(host: Host) -> None:
    reference = weakref.WeakMethod(host.training_step)
    assert reference()(2) == 2


def test_nothing_keeps_the_owner_once_the_wrap_is_undone(steps: Steps) -> None:
    gc.disable()
    try:
        host, patches = Host(), Patches("test")
        patches.wrap(host, "training_step", steps.around)
        kept = host.training_step.__func__  # somebody else still has it
        patches.undo()
        reference = weakref.ref(host)
        del host
        assert reference() is None
        assert kept is not None
    finally:
        gc.enable()


def test_what_replaces_a_function_of_a_class_is_a_function() -> None:
    class Trainer:
        @functools.wraps(Host.__init__)
        def __init__(self, depth: int = 1) -> None:
            self.depth = depth

    before = inspect.signature(Trainer)
    seen, patches = [], Patches("test")

    def around(instance, *args, **kwargs):
        yield
        seen.append(instance.depth)

    patches.wrap(Trainer, "__init__", around)
    assert isinstance(vars(Trainer)["__init__"], FunctionType)
    assert inspect.signature(Trainer) == before
    assert Trainer(3).depth == 3
    assert seen == [3]
    patches.undo()
    assert Trainer(4).depth == 4
    assert seen == [3]


def test_a_class_that_is_pickled_by_value_takes_no_wrap_along(host: Host, steps: Steps) -> None:
    """As cloudpickle does with what a notebook or a script defines, for the workers of Ray, Dask or Spark."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        pickled = cloudpickle.dumps(host)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    code = (
        "import pickle, sys; host = pickle.load(sys.stdin.buffer); print(host.training_step(2, 3), host.decorated(2))"
    )
    worker = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, timeout=120, check=False)
    assert worker.stdout.split() == [b"5", b"4"], worker.stderr.decode()
    assert steps.calls == []
    assert host.training_step(2, 3) == 5
    assert len(steps.calls) == 1


def test_a_wrapped_class_is_still_understood_by_argument_parsers() -> None:
    import jsonargparse

    class Trainer:
        def __init__(self, depth: int = 1, name: str = "a") -> None:
            """A trainer.

            Args:
                depth: how deep.
                name: which.
            """

    def around(instance, *args, **kwargs):
        yield

    patches = Patches("test")
    patches.wrap(Trainer, "__init__", around)
    parser = jsonargparse.ArgumentParser()
    parser.add_class_arguments(Trainer, "trainer")
    assert parser.parse_args(["--trainer.depth=3"]).trainer.depth == 3
    patches.undo()
