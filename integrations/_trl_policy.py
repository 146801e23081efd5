"""What TRL's trainers generate, reward and optimise, as policy diagnostics."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch import Tensor

from areal_callbacks import workflow_context
from areal_callbacks.integrations._trl_methods import (
    GRPOTrainer,
    RLOOTrainer,
    find_end_ids,
    find_foreign_methods,
    report_foreign,
)
from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.clip import Clip
from areal_callbacks.ppo.diagnostics import PolicyDiagnostics
from areal_callbacks.ppo.rewards import combine_rewards
from areal_callbacks.ppo.update import PolicyUpdate
from areal_callbacks.safety.door import Around, Observer, guarded
from areal_callbacks.safety.patches import Patches
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session import MetricsSession

_VERSIONS = "areal_versions"
"""Added to a generated batch, so that the versions are shuffled and split with it."""
_GENERATION = "_generate_and_score_completions"
_GENERATED = ("prompt_mask", "completion_ids", "completion_mask", "advantages")
_TRAINED = ("completion_mask", "advantages")
_PPO_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


def observe(trainer: Any, session: MetricsSession, patches: Patches) -> None:
    """Take generation out of the training time, and record policy diagnostics of GRPO (in part of RLOO) trainers.

    ==================================  ======================================================================
    Recorded                            From
    ==================================  ======================================================================
    ``timeperf/rollout``                generation, scoring and the forwards without gradients that follow it
    lengths, rewards, advantages        every generated batch
    ``ppo_actor/train_infer/``          GRPO with sampling log-probabilities (vLLM or a ``rollout_func``), against
                                        the recomputed ones or, where TRL does not recompute any because a batch is
                                        used up before the next update, against those of its first training forward
    ``ppo_actor/update/``               every training forward of GRPO
    ``…/update/version_stats/``         GRPO that generates by itself, or a ``rollout_func`` that returns ``versions``:
                                        per completion a list with the number of updates that the sampling policy
                                        had seen, one per token
    ==================================  ======================================================================

    No forward is added. Evaluation is not observed; rollout and reward functions find themselves in
    :func:`~areal_callbacks.workflow_context.evaluation` there. Other trainers (DPO, SFT, …) are left alone.
    """
    if not isinstance(trainer, GRPOTrainer | RLOOTrainer):
        return
    observer = _PolicyObserver(trainer, session)
    arounds = observer.arounds()
    foreign = find_foreign_methods(trainer, arounds)
    if foreign and session.config.ppo.enabled:
        report_foreign(trainer, foreign)
        arounds = {} if _GENERATION in foreign else {_GENERATION: observer.around_generation}
    for name, around in arounds.items():
        patches.wrap(trainer, name, around)


class _PolicyObserver(Observer):
    """Follows a batch through the trainer's own methods; it reads only what they return."""

    family = "ppo"

    def __init__(self, trainer: Any, session: MetricsSession) -> None:
        self._trainer = trainer
        self._session = session
        self._diagnostics = PolicyDiagnostics(session.tracker, extended=session.config.ppo.extended)
        self._rewards: Tensor | None = None
        self._versions: list[list[int]] | None = None
        self._generated_at = 0
        self._seen: set[int] = set()
        self._forwards: list[Any] | None = None

    def arounds(self) -> dict[str, Around]:
        """What is wrapped, by the name of the trainer's method."""
        arounds: dict[str, Around] = {_GENERATION: self.around_generation}
        if self._session.config.ppo.enabled:
            arounds["_calculate_rewards"] = self.around_rewards
            if isinstance(self._trainer, GRPOTrainer):
                arounds["_generate"] = self.around_sampling
                arounds["_compute_loss"] = self.around_loss
                arounds["_get_per_token_logps_and_entropies"] = self.around_forward
        return arounds

    # -- generation

    def around_generation(self, *args: Any, **kwargs: Any) -> Generator[None, dict[str, Any]]:
        if not self._training:
            with workflow_context.evaluation():
                yield
            return
        self._rewards = self._versions = None
        with self._session.excluded("rollout"):
            batch = yield
        if self._session.config.ppo.enabled and self._knows(batch, _GENERATED, _GENERATION):
            self._observe_batch(batch)

    def around_sampling(self, *args: Any, **kwargs: Any) -> Generator[None, tuple[Any, ...]]:
        generated = yield
        if self._training:
            self._note_versions(generated)

    @guarded
    def _note_versions(self, generated: tuple[Any, ...]) -> None:
        for part in generated:
            if isinstance(part, Mapping):  # a rollout_func's extra fields
                self._versions = part.get("versions")

    def around_rewards(self, *args: Any, **kwargs: Any) -> Generator[None, Tensor]:
        self._rewards = yield

    @guarded
    def _observe_batch(self, batch: dict[str, Any]) -> None:
        self._seen.clear()
        self._generated_at = self._trainer.state.global_step
        versions = _pad(self._versions, batch["completion_mask"])
        if versions is not None:
            batch[_VERSIONS] = versions
        rewards, scored = self._local_rewards(len(batch["completion_mask"]))
        self._diagnostics.observe_rollout_batch(
            PolicyBatch(
                _mask(batch),
                attention_mask=torch.cat((batch["prompt_mask"], batch["completion_mask"]), 1),
                prompt_len=batch["prompt_mask"].sum(-1),
                no_eos=~self._find_ended(batch["completion_ids"], batch["completion_mask"]),
                advantages=batch["advantages"],
                task_reward=rewards,
                scored=scored,
            )
        )
        if "old_per_token_logps" in batch:
            self._diagnostics.observe_mismatch(self._describe(batch, batch["old_per_token_logps"]))

    def _local_rewards(self, size: int) -> tuple[Tensor | None, Tensor | None]:
        if not isinstance(self._rewards, Tensor):
            return None, None
        first = self._trainer.accelerator.process_index * size
        return combine_rewards(self._rewards[first : first + size], self._trainer.reward_weights)

    def _find_ended(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Sequences whose last token ends them."""
        length = mask.sum(-1, keepdim=True)
        last = ids.gather(-1, (length - 1).clamp(min=0))
        ends = find_end_ids(self._trainer)
        return (torch.isin(last, torch.tensor(ends, device=ids.device)) & (length > 0)).squeeze(-1)

    # -- optimisation

    def around_forward(self, *args: Any, **kwargs: Any) -> Generator[None, Any]:
        result = yield
        if self._forwards is not None:
            self._forwards.append(result)

    def around_loss(self, *args: Any, **kwargs: Any) -> Generator[None, Tensor]:
        if not self._training:
            return
        forwards = self._forwards = []
        try:
            yield
        finally:
            self._forwards = None
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        if forwards and self._knows(inputs, _TRAINED, "_compute_loss"):
            self._observe_loss(forwards[0], *args, **kwargs)

    @guarded
    def _observe_loss(self, forward: tuple[Any, ...], model: Any, inputs: Mapping[str, Any]) -> None:
        new_logp, entropy = forward[0].detach(), forward[1]
        old_logp = inputs.get("old_per_token_logps")
        first = id(inputs) not in self._seen  # the trainer keeps a batch until it generates the next ones
        self._seen.add(id(inputs))
        rollout = self._describe(inputs, new_logp)
        if old_logp is None and first:
            self._diagnostics.observe_mismatch(rollout)
        self._diagnostics.observe_versions(rollout)
        self._diagnostics.observe_update(
            PolicyUpdate(
                rollout.mask,
                new_logp,
                new_logp if old_logp is None else old_logp,
                advantages=inputs["advantages"],
                entropy=entropy,
                clip=_clip(self._trainer),
                sequence_level=self._trainer.importance_sampling_level == "sequence",
            )
        )

    def _describe(self, batch: Mapping[str, Any], trainer_logp: Tensor) -> PolicyBatch:
        """The tokens of a generated batch with the log-probabilities that are to be compared."""
        return PolicyBatch(
            _mask(batch),
            trainer_logp=trainer_logp,
            rollout_logp=batch.get("sampling_per_token_logps"),
            advantages=batch["advantages"],
            versions=self._versions_of(batch),
            mask_at_predictions=False,
            current_version=self._trainer.state.global_step,
        )

    def _versions_of(self, batch: Mapping[str, Any]) -> Tensor | None:
        """What the rollout function told, or when the trainer generated the batch."""
        if getattr(self._trainer, "rollout_func", None) is not None:
            return batch.get(_VERSIONS)
        return torch.full_like(batch["completion_mask"], self._generated_at)

    def _knows(self, batch: Any, names: tuple[str, ...], method: str) -> bool:
        """A batch as TRL's own method has it; a trainer that overrides it may have others."""
        if isinstance(batch, Mapping) and all(isinstance(batch.get(name), Tensor) for name in names):
            return True
        report_foreign(self._trainer, [method])
        return False

    @property
    def _training(self) -> bool:
        return bool(self._trainer.model.training)


def _mask(batch: Mapping[str, Any]) -> Tensor:
    """Tokens in the loss; the environment's own tokens are not."""
    mask: Tensor = batch["completion_mask"] != 0
    return mask & (batch["tool_mask"] != 0) if "tool_mask" in batch else mask


def _clip(trainer: Any) -> Clip | None:
    if trainer.loss_type in _PPO_LOSSES:
        return Clip(1 - trainer.epsilon_low, 1 + trainer.epsilon_high, trainer.args.delta)
    if trainer.loss_type == "cispo":
        return Clip(0.0, trainer.epsilon_high, surrogate=False)
    return None


def _pad(versions: list[list[int]] | None, mask: Tensor) -> Tensor | None:
    """``[B, C]`` like the mask, -1 beyond each list."""
    if versions is None:
        return None
    with contextlib.suppress(TypeError, ValueError):
        rows = [[*row, *[-1] * (mask.shape[1] - len(row))] for row in versions]
        padded = torch.tensor(rows, dtype=torch.long, device=mask.device)
        if padded.shape == mask.shape:
            return padded
    report_once("trl:versions", "rollout_func's versions are not one list per completion: no staleness")
    return None
