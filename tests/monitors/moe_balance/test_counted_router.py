"""One router: where its choice is read, and what it costs if that cannot be done."""

from __future__ import annotations

import pytest
from support.observed_moe import Observed, by_hand
from support.readback import messages
from support.toy_moe import EXPERTS, WIDTH, ToyMoE, batches
from torch import Tensor


def test_what_other_hooks_make_of_the_output_does_not_matter() -> None:
    model, data = ToyMoE(), batches(1)
    for layer in model.layers.values():  # as a parallel layout may turn global expert ids into local ones
        layer.router.register_forward_hook(lambda _, __, output: (output[0], output[1] * 0, output[2]))
    observed = Observed(model)
    model(data[0])
    assert observed.counts() == by_hand(model, data)


def test_a_router_whose_output_tells_nothing_is_left_out_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model, data = ToyMoE(), batches(2)
    expected = by_hand(model, data)
    silent = model.layers["1"].router
    silent.forward = lambda hidden, forward=silent.forward: _renamed(forward(hidden))
    model.layers["1"].forward = lambda hidden: silent(hidden.reshape(-1, WIDTH)) and hidden
    observed = Observed(model)
    for batch in data:
        model(batch)
    counted = observed.counts()
    assert counted.keys() == {"/0", "/2", "/3"}
    assert counted["/0"] == expected["/0"]
    assert [line.split(" (")[0] for line in messages(caplog)] == ["no moe_balance of layers.1.router"]


def _renamed(output: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {"scores": output[0], "indices": output[1]}


def test_experts_beyond_the_routers_number_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    model, data = ToyMoE(), batches(1)
    expected = by_hand(model, data)
    for layer in model.layers.values():
        layer.router.register_forward_pre_hook(lambda module, _: setattr(module, "num_experts", EXPERTS))
        layer.router.num_experts = 3
    observed = Observed(model)
    model(data[0])
    assert observed.counts() == {name: row[:3] for name, row in expected.items()}
    assert messages(caplog) == [
        "TokenChoiceTopKRouter chose experts beyond its 3: those assignments are left out of moe_balance"
    ]


def test_a_router_that_becomes_unreadable_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Part of its assignments would pass for all of them."""
    model, data = ToyMoE(), batches(3)
    expected = by_hand(model, data)
    router = model.layers["2"].router
    intact = router.forward
    observed = Observed(model)
    model(data[0])
    router.forward = lambda hidden: _renamed(intact(hidden))
    model.layers["2"].forward = lambda hidden: router(hidden.reshape(-1, WIDTH)) and hidden
    model(data[1])
    del router.forward, model.layers["2"].forward
    model(data[2])
    counted = observed.counts()
    assert counted.keys() == {"/0", "/1", "/3"}
    assert [counted["/0"], counted["/1"]] == [expected["/0"], expected["/1"]]
    assert len(messages(caplog)) == 1
