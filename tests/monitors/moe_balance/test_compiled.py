"""Compiled models: the hooks are part of the graph, and code from before them is noticed."""

from __future__ import annotations

import pytest
import torch
from support.observed_moe import Observed, by_hand
from support.readback import messages
from support.tiny_trainer import moe_model
from support.toy_moe import EXPERTS, ToyMoE, batches


@pytest.mark.slow
def test_code_that_was_compiled_before_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    model, data = ToyMoE(), batches(1)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(data[0])
    observed = Observed(compiled)
    compiled(data[0])
    observed.counts()
    (message,) = messages(caplog)
    assert "call torch._dynamo.reset() after attaching" in message
    torch._dynamo.reset()
    compiled(data[0])
    assert observed.counts() == by_hand(model, data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning:torch")
def test_a_hugging_face_model_compiles_whole_with_the_hooks_and_never_again() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = moe_model(attention="eager", experts_implementation="batched_mm").train()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    observed = Observed(compiled)
    for batch in batches(4):
        compiled(input_ids=batch, labels=batch).loss.backward()
        model.zero_grad()
        observed.counts()
    statistics = torch._dynamo.utils.counters
    assert statistics["stats"]["unique_graphs"] == 1
    assert not statistics["graph_break"]
    assert not statistics["recompiles"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # tracing a block
def test_equal_blocks_share_one_compiled_graph_and_count_apart() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, data = ToyMoE((EXPERTS,) * 10), batches(2)
    expected = by_hand(model, data)
    for layer in model.layers.values():
        layer.compile(backend="aot_eager", fullgraph=True)
    observed = Observed(model)
    for batch in data:
        model(batch)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert observed.counts() == expected
