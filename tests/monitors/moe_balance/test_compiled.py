"""Compiled models: the hooks are part of the graph, and code from before them is noticed."""

from __future__ import annotations

import pytest
import torch
from support.observed_moe import Observed, by_hand
from support.readback import messages
from support.tiny_trainer import moe_model
from support.toy_moe import EXPERTS, ToyMoE, batches
from torch import Tensor, nn


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


class SelfCounting(nn.Module):
    """Counts what its gate chose in a buffer, which grows or holds the last forward."""

    def __init__(self, grows: bool) -> None:
        super().__init__()
        self.register_buffer("routing_counts", torch.zeros(4))
        self.gate = nn.Linear(8, 4, bias=False)
        self.grows = grows

    def forward(self, hidden: Tensor) -> Tensor:
        logits = self.gate(hidden)
        counts = nn.functional.one_hot(logits.argmax(-1), 4).sum(0)
        self.routing_counts.copy_(counts + self.routing_counts if self.grows else counts)
        return hidden * logits.sum()


@pytest.mark.slow
@pytest.mark.parametrize("grows", [True, False])
def test_buffers_are_counted_in_compiled_code(grows: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(SelfCounting(grows))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    observed = Observed(compiled)
    data = [torch.randn(6, 8) for _ in range(4)]
    for inputs in data:
        compiled(inputs).sum().backward()
    chosen = (torch.cat(data) @ model[0].gate.weight.T).argmax(-1)
    assert observed.counts() == {"/0": torch.bincount(chosen, minlength=4).tolist()}
