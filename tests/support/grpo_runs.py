"""What the tests of GRPO runs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

SMALL = {"per_device_train_batch_size": 8, "num_generations": 4}


class Capture:
    """Keeps what a trainer's methods are given and return in training; put in place before training starts.

    Attributes:
        batches: (global step, tensors of the batch by name) of every generation.
        losses: (global step, inputs of the loss, log-probabilities ``[B, C]`` of its forward) of every loss.
        forwards: number of the model's forwards.
        attributes: the trainer's own attributes after this was put in place.
    """

    def __init__(self, trainer: Any) -> None:
        self.batches: list[tuple[int, dict[str, Tensor]]] = []
        self.losses: list[tuple[int, dict[str, Any], Tensor]] = []
        self.forwards = 0
        self.trainer = trainer
        for name in ("_generate_and_score_completions", "_compute_loss", "_get_per_token_logps_and_entropies"):
            setattr(trainer, name, self._watch(getattr(trainer, name), getattr(self, name)))
        trainer.model.register_forward_pre_hook(self._count)
        self.attributes = dict(vars(trainer))

    def _watch(self, original: Callable[..., Any], keep: Callable[[Any, tuple[Any, ...]], None]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.trainer.model.training:
                keep(result, args)
            return result

        return watched

    def _count(self, *_: Any) -> None:
        self.forwards += 1

    def _generate_and_score_completions(self, batch: dict[str, Any], args: tuple[Any, ...]) -> None:
        kept = {name: value.clone() for name, value in batch.items() if isinstance(value, Tensor)}
        self.batches.append((self.trainer.state.global_step, kept))

    def _get_per_token_logps_and_entropies(self, result: tuple[Tensor, Any], args: tuple[Any, ...]) -> None:
        self.logp = result[0].detach().clone()

    def _compute_loss(self, loss: Tensor, args: tuple[Any, ...]) -> None:
        self.losses.append((self.trainer.state.global_step, dict(args[1]), self.logp))


def rows_of(trainer: Any) -> dict[int, dict[str, float]]:
    """Step → what was logged for it."""
    return {row["step"]: row for row in trainer.state.log_history if "train_perf/tokens" in row and "loss" in row}


def joined(parts: Iterable[Tensor]) -> npt.NDArray[np.float64]:
    """Tensors of several micro-batches, flattened into one array."""
    return np.concatenate([part.double().numpy().ravel() for part in parts])
