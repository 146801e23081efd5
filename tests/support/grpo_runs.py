"""What the tests of GRPO runs share."""

from __future__ import annotations

import numpy as np
import torch

SMALL = {"per_device_train_batch_size": 8, "num_generations": 4}


class Capture:
    """Keeps what a trainer's methods are given and return in training; put in place before training starts."""

    def __init__(self, trainer):
        self.batches, self.losses, self.forwards = [], [], 0
        self.trainer = trainer
        for name in ("_generate_and_score_completions", "_compute_loss", "_get_per_token_logps_and_entropies"):
            setattr(trainer, name, self._around(getattr(trainer, name), getattr(self, name)))
        trainer.model.register_forward_pre_hook(self._count)
        self.attributes = dict(vars(trainer))

    def _around(self, original, seen):
        def wrapped(*args, **kwargs):
            result = original(*args, **kwargs)
            if self.trainer.model.training:
                seen(result, args)
            return result

        return wrapped

    def _count(self, *_):
        self.forwards += 1

    def _generate_and_score_completions(self, batch, args):
        kept = {name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)}
        self.batches.append((self.trainer.state.global_step, kept))

    def _get_per_token_logps_and_entropies(self, result, args):
        self.logp = result[0].detach().clone()

    def _compute_loss(self, loss, args):
        self.losses.append((self.trainer.state.global_step, dict(args[1]), self.logp))


def rows_of(trainer):
    """Step → what was logged for it."""
    return {row["step"]: row for row in trainer.state.log_history if "train_perf/tokens" in row and "loss" in row}


def joined(parts):
    """Tensors of several micro-batches, flattened into one array."""
    return np.concatenate([part.double().numpy().ravel() for part in parts])
