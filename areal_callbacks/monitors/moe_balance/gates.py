"""Blocks without a router module: a linear gate, the top-k of whose logits the block takes by itself.

The logits tell what is chosen only if the block takes their plain top-k: no bias, groups or noise in between. So in the
first call of each block the top-k is compared with the rows that its experts are given.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from areal_callbacks.monitors.moe_balance.contracts import Contract, local, top_k_of
from areal_callbacks.safety.attributes import read_attribute
from areal_callbacks.safety.door import Observer
from areal_callbacks.safety.hooks import Attachments

NAME = "gate logits of the block"
_GATES = ("gate", "router")


class Gate(NamedTuple):
    """A linear gate of a block.

    Attributes:
        name: of the gate.
        module: the gate.
        contract: the top-k of its logits.
        block: prefix of the names of everything inside the block.
    """

    name: str
    module: nn.Module
    contract: Contract
    block: str


def find_gates(model: nn.Module) -> Iterator[Gate]:
    """Gates with one output for each expert in a list of their block, of blocks that tell their top-k."""
    for name, block in model.named_modules():
        experts, top_k = read_attribute(block, "experts"), top_k_of(block)
        block_name = f"{name}." if name else ""
        for own in _GATES:
            gate = read_attribute(block, own)
            if top_k and isinstance(experts, nn.ModuleList) and _chooses_among(gate, len(experts)):
                read = partial(_read_top_k, top_k)
                contract = Contract(NAME, read, experts=len(experts), given_to=tuple(map(weakref.ref, experts)))
                yield Gate(f"{block_name}{own}", gate, contract, block_name)


def _chooses_among(gate: Any, experts: int) -> bool:
    return isinstance(gate, nn.Linear) and gate.out_features == experts


def _read_top_k(top_k: int, gate: nn.Module, logits: Any) -> Tensor:  # noqa: ARG001
    return cast("Tensor", local(logits)).detach().topk(top_k, dim=-1).indices


class GateCheck(Observer):
    """Compares one call's choice with the rows that each expert is given in it. Waits for nothing before it is asked.

    Args:
        gate: what the contract reads.
        contract: with the modules that the experts are.
    """

    family = "moe_balance"

    def __init__(self, gate: nn.Module, contract: Contract) -> None:
        self._contract = contract
        self._rows = [0] * len(contract.given_to)
        self._chosen: Tensor | None = None
        self._attachments = Attachments(self)
        self._attachments.hook(gate.register_forward_hook, self._note_choice)
        for number, reference in enumerate(contract.given_to):
            expert = cast("nn.Module", reference())
            self._attachments.hook(expert.register_forward_pre_hook, partial(self._note_rows, number))

    def differs(self) -> bool:
        """The experts were given other rows than the choice tells; False before a call. Waits for the device."""
        if self._chosen is None or self.failed:
            return False
        chosen = torch.bincount(self._chosen.reshape(-1).cpu(), minlength=len(self._rows)).tolist()
        self.detach()
        return bool(chosen != self._rows)

    def detach(self) -> None:
        self._attachments.undo()

    def _note_choice(self, gate: nn.Module, arguments: Any, logits: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._chosen is None:
            self._chosen = self._contract.read(gate, logits)
        else:
            self.detach()

    def _note_rows(self, number: int, expert: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if self._chosen is not None:
            self._rows[number] += arguments[0].shape[:-1].numel()
