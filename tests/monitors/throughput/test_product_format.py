"""The format of matrix products, seen in real forwards on the CPU."""

from __future__ import annotations

import pytest
import torch
from support.tiny_trainer import moe_model
from torch import nn

from areal_callbacks.monitors.throughput import product_format
from areal_callbacks.monitors.throughput.product_format import ProductFormat, allows_tf32
from areal_callbacks.monitors.training_forward import TrainingForward

CPU = torch.device("cpu")
IDS = torch.tensor([[5, 6, 7]])


class Watched:
    """A model with a probe; forwards as a host runs them."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.forward = model.train(), TrainingForward()
        self.format = ProductFormat([model], CPU, self.forward)
        self.forward.attach([model])

    def hooks(self) -> int:
        return sum(len(m._forward_hooks) for m in self.model.modules() if isinstance(m, nn.Linear))


def test_weights_decide_without_autocast_and_hooks_go() -> None:
    for dtype, expected in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")):
        watched = Watched(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(dtype))
        assert watched.hooks() == 2
        watched.model(torch.ones(1, 4, dtype=dtype))
        assert watched.format.take() == expected
        assert watched.hooks() == 0


def test_autocast_that_a_host_enters_inside_of_the_forward() -> None:
    """As Accelerate does: it wraps ``forward``, so that no hook of the outermost module runs within."""
    model = moe_model()
    inner = model.forward
    model.forward = torch.autocast("cpu", torch.bfloat16)(inner)  # type: ignore[method-assign]
    watched = Watched(model)
    watched.model(input_ids=IDS)
    assert watched.format.take() == "bf16"


def test_a_float32_head_does_not_decide_for_the_model() -> None:
    body = nn.Linear(64, 64).bfloat16()

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body, nn.Linear(64, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x).float())

    watched = Watched(Mixed())
    watched.model(torch.ones(1, 64, dtype=torch.bfloat16))
    assert watched.format.take() == "bf16"


def test_only_training_forwards_tell() -> None:
    watched = Watched(nn.Sequential(nn.Linear(4, 4)))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        watched.model(torch.ones(1, 4))
    assert watched.format.take() is None  # float32 weights alone do not tell


def test_what_is_compiled_is_not_hooked() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).bfloat16()
    model[0].compile(backend="eager")
    watched = Watched(model)
    assert watched.hooks() == 1
    whole = Watched(torch.compile(nn.Sequential(nn.Linear(4, 4)).bfloat16(), backend="eager"))  # type: ignore[arg-type]
    assert whole.hooks() == 0
    assert whole.format.take() == "bf16"


def test_autocast_around_what_cannot_be_hooked() -> None:
    watched = Watched(torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager"))  # type: ignore[arg-type]
    with torch.autocast("cpu", torch.bfloat16):
        watched.format.on_forward()
    assert watched.format.take() == "bf16"


@pytest.mark.parametrize(("name", "expected"), [("Float8Linear", "fp8"), ("Linear8bitLt", None)])
def test_layers_of_other_formats_by_their_class(name: str, expected: str | None) -> None:
    layer = type(name, (nn.Linear,), {})(4, 4)
    watched = Watched(nn.Sequential(layer))
    watched.model(torch.ones(1, 4))
    assert watched.format.take() == expected


def test_a_large_model_is_sampled() -> None:
    watched = Watched(nn.Sequential(*(nn.Linear(1, 1) for _ in range(1000))))
    assert 0 < watched.hooks() <= product_format._SAMPLE


def test_tf32_follows_the_switch_of_torch() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        for precision, allowed in (("highest", False), ("high", True)):
            torch.set_float32_matmul_precision(precision)
            assert allows_tf32() is allowed
    finally:
        torch.set_float32_matmul_precision(before)
