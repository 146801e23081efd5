"""A script as users of Megatron-LM write it: providers, a forward step, and a call of pretrain."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.training import common, training
from support import tiny_megatron
from support.megatron_cpu import pretend_cuda
from torch import Tensor, nn

from areal_callbacks import stats_tracker


def model_provider(layout: tiny_megatron.Layout) -> tuple[list[nn.Module], Any]:
    model = tiny_megatron.build(layout)
    return model.chunks, model.optimizer


class ForwardStep:
    """Records a metric of its own, and makes the loss infinite where the command line says so."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, data_iterator: Iterator[Tensor], model: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
        output, loss = tiny_megatron.forward_step(data_iterator, model)
        if not torch.is_grad_enabled():
            return output, loss
        iteration = self.calls // tiny_megatron.MICRO_BATCHES + 1
        self.calls += 1
        stats_tracker.scalar(micro_batch=float(self.calls))
        if iteration != common.get_args().infinite_at:
            return output, loss

        def infinite(output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            mean, losses = loss(output)
            return mean * math.inf, losses

        return output, infinite


def main(pretrain: Callable[..., None]) -> None:
    layout = contextlib.ExitStack()

    def provider(wanted: tiny_megatron.Layout) -> Any:
        layout.enter_context(tiny_megatron.parallel(wanted))
        return model_provider(wanted)

    with layout:
        pretrain(None, provider, None, ForwardStep())


if __name__ == "__main__":
    pretend_cuda()
    main(training.pretrain)
