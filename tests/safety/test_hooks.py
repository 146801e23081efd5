"""What all attachments of a process share."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch
from torch import nn

from areal_callbacks.safety.door import Observer
from areal_callbacks.safety.hooks import Attachments

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Witness(Observer):
    family = "witness"


@pytest.fixture
def original() -> Any:
    """What scripting calls, once nothing that other tests have left is attached any more."""
    gc.collect()
    return torch.jit._recursive.get_hook_stubs


def _attach(module: nn.Module) -> Attachments:
    attachments = Attachments(Witness())
    attachments.hook(module.register_forward_hook, lambda *_: None)
    return attachments


def test_as_many_attachments_as_there_are_routers_leave_scripting_as_it_was(original: Any) -> None:
    model = nn.Linear(2, 2)
    expected = torch.jit.script(nn.Linear(2, 2)).code
    attached = [_attach(model) for _ in range(2 * sys.getrecursionlimit())]
    assert torch.jit.script(model).code == expected
    assert len(model._forward_hooks) == len(attached)
    for attachments in attached[1:]:
        attachments.undo()
    assert torch.jit.script(model).code == expected
    attached[0].undo()
    assert torch.jit._recursive.get_hook_stubs is original


def test_attachments_that_are_forgotten_do_not_keep_the_wrap(original: Any) -> None:
    forgotten = _attach(nn.Linear(2, 2))
    last = _attach(nn.Linear(2, 2))
    del forgotten
    last.undo()
    assert torch.jit._recursive.get_hook_stubs is original


def test_what_was_attached_before_a_failure_is_taken_off() -> None:
    model, attachments = nn.Linear(2, 2), Attachments(Witness())
    for fail in (
        lambda: attachments.hook(lambda _: [][0], lambda *_: None),
        lambda: attachments.wrap(model, "no_method", lambda: None),
    ):
        attachments.hook(model.register_forward_hook, lambda *_: None)
        attachments.wrap(model, "forward", lambda *_: None)
        with pytest.raises((IndexError, AttributeError)):
            fail()
        assert (len(model._forward_hooks), "forward" in vars(model)) == (0, False)
