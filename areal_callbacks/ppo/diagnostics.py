"""Everything about a policy's training from what an RL loop has at hand: two calls per batch."""

from __future__ import annotations

from torch import Tensor

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.advantages import log_advantage_stats
from areal_callbacks.ppo.inputs import check_shapes
from areal_callbacks.ppo.staleness import log_version_stats
from areal_callbacks.ppo.train_infer import log_train_inference_stats
from areal_callbacks.ppo.update import Clip, log_batch_stats, log_update_stats


class PolicyDiagnostics:
    """Records ``ppo_actor/`` from whatever an RL loop can give; what is missing is not recorded.

    ::

        diagnostics = PolicyDiagnostics()
        diagnostics.observe_rollout_batch(               # once per batch, before filtering and before the update
            mask, trainer_logp=recomputed, rollout_logp=sampled, advantages=advantages, task_reward=rewards,
            attention_mask=attention_mask, versions=versions, current_version=step,
        )
        for minibatch in minibatches:                    # once per forward of the update
            ...
            diagnostics.observe_update(mask, new_logp, old_logp, advantages=advantages, entropy=entropy, clip=Clip())

    All tensors are only read. Per-token tensors are ``[B, T]`` like the mask, on any device and in any float dtype, and
    aligned with it: position t of each describes the same generated token.

    Args:
        tracker: None for the default tracker.
        extended: also the extensions of :func:`~areal_callbacks.ppo.train_infer.log_train_inference_stats`.
    """

    def __init__(self, tracker: StatsTracker | None = None, *, extended: bool = True) -> None:
        self.tracker = tracker
        self.extended = extended

    def observe_rollout_batch(
        self,
        mask: Tensor,
        *,
        trainer_logp: Tensor | None = None,
        rollout_logp: Tensor | None = None,
        advantages: Tensor | None = None,
        versions: Tensor | None = None,
        current_version: int | None = None,
        attention_mask: Tensor | None = None,
        kl_rewards: Tensor | None = None,
        final_reward: Tensor | None = None,
        task_reward: Tensor | None = None,
        scored: Tensor | None = None,
        prompt_len: Tensor | None = None,
        seq_len: Tensor | None = None,
        no_eos: Tensor | None = None,
    ) -> None:
        """Record a batch as it came from the rollout: the mismatch, advantages, staleness, lengths and rewards.

        Args:
            mask: generated tokens in the loss (boolean or 0/1), ``[B, T]``.
            trainer_logp, rollout_logp: see :func:`~areal_callbacks.ppo.train_infer.log_train_inference_stats`; both or
                no mismatch.
            advantages: ``[B, T]``, or ``[B]`` for one per sequence.
            versions, current_version: see :func:`~areal_callbacks.ppo.staleness.log_version_stats`; both or no
                staleness.
            attention_mask, kl_rewards, final_reward, task_reward, scored, prompt_len, seq_len, no_eos: see
                :func:`~areal_callbacks.ppo.update.log_batch_stats`.

        Raises:
            ValueError: a shape differs; nothing is recorded then.
        """
        advantages = _per_token(advantages, mask)
        check_shapes(mask, trainer_logp=trainer_logp, rollout_logp=rollout_logp, versions=versions)
        log_batch_stats(
            mask,
            tracker=self.tracker,
            attention_mask=attention_mask,
            advantages=advantages,
            kl_rewards=kl_rewards,
            final_reward=final_reward,
            task_reward=task_reward,
            scored=scored,
            prompt_len=prompt_len,
            seq_len=seq_len,
            no_eos=no_eos,
        )
        if advantages is not None:
            log_advantage_stats(advantages, mask, self.tracker)
        self.observe_versions(mask, versions, current_version)
        self.observe_mismatch(
            mask, trainer_logp, rollout_logp, advantages=advantages, versions=versions, current_version=current_version
        )

    def observe_mismatch(
        self,
        mask: Tensor,
        trainer_logp: Tensor | None,
        rollout_logp: Tensor | None,
        *,
        advantages: Tensor | None = None,
        versions: Tensor | None = None,
        current_version: int | None = None,
    ) -> None:
        """Record the mismatch alone, for loops that get to know the trainer's log-probabilities later."""
        if trainer_logp is None or rollout_logp is None:
            return
        log_train_inference_stats(
            trainer_logp,
            rollout_logp,
            mask,
            self.tracker,
            extended=self.extended,
            versions=versions,
            current_version=current_version,
            advantages=_per_token(advantages, mask),
        )

    def observe_versions(self, mask: Tensor, versions: Tensor | None, current_version: int | None) -> None:
        """Record the staleness alone, for loops that use a batch in several updates."""
        if versions is not None and current_version is not None:
            log_version_stats(versions, mask, current_version, self.tracker)

    def observe_update(
        self,
        mask: Tensor,
        new_logp: Tensor,
        old_logp: Tensor,
        *,
        advantages: Tensor | None = None,
        entropy: Tensor | None = None,
        loss: Tensor | None = None,
        clip: Clip | None = None,
        sequence_level: bool = False,
    ) -> None:
        """Record a forward of the update; see :func:`~areal_callbacks.ppo.update.log_update_stats`.

        Raises:
            ValueError: a shape differs.
        """
        log_update_stats(
            mask,
            new_logp,
            old_logp,
            tracker=self.tracker,
            advantages=_per_token(advantages, mask),
            entropy=entropy,
            loss=loss,
            clip=clip,
            sequence_level=sequence_level,
        )


def _per_token(advantages: Tensor | None, mask: Tensor) -> Tensor | None:
    """``[B]`` as ``[B, T]``."""
    if advantages is not None and advantages.dim() == mask.dim() - 1:
        return advantages.unsqueeze(-1).expand(mask.shape) if advantages.shape == mask.shape[:-1] else advantages
    return advantages
