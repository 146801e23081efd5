"""All policy diagnostics of an RL loop, with two calls per batch."""

from __future__ import annotations

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.advantages import log_advantage_stats
from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.batch_stats import log_batch_stats
from areal_callbacks.ppo.stacks.nemo_rl import from_nemo_rl
from areal_callbacks.ppo.stacks.openrlhf import from_openrlhf
from areal_callbacks.ppo.stacks.slime import from_slime
from areal_callbacks.ppo.stacks.verl import from_verl
from areal_callbacks.ppo.staleness import log_version_stats
from areal_callbacks.ppo.train_infer import log_train_inference_stats
from areal_callbacks.ppo.update import PolicyUpdate
from areal_callbacks.ppo.update_stats import log_update_stats


class PolicyDiagnostics:
    """Records ``ppo_actor/`` from what an RL loop has; metrics of fields that are None are not recorded.

    ::

        diagnostics = PolicyDiagnostics()
        diagnostics.observe_rollout_batch(  # once per batch, before filtering and before the update
            PolicyBatch(mask, trainer_logp=recomputed, rollout_logp=sampled, advantages=advantages, task_reward=rewards,
                        attention_mask=attention_mask, versions=versions, current_version=step)
        )
        for minibatch in minibatches:       # once per training forward
            ...
            diagnostics.observe_update(
                PolicyUpdate(mask, new_logp, old_logp, advantages=advantages, entropy=entropy, clip=Clip())
            )

    ``from_verl``, ``from_openrlhf``, ``from_slime`` and ``from_nemo_rl`` make a :class:`PolicyBatch` of the batches of
    these stacks::

        diagnostics.observe_rollout_batch(PolicyDiagnostics.from_verl(batch))

    Args:
        tracker: None for the default tracker.
        extended: also the extensions of :func:`~areal_callbacks.ppo.train_infer.log_train_inference_stats`.
    """

    from_verl = staticmethod(from_verl)
    from_openrlhf = staticmethod(from_openrlhf)
    from_slime = staticmethod(from_slime)
    from_nemo_rl = staticmethod(from_nemo_rl)

    def __init__(self, tracker: StatsTracker | None = None, *, extended: bool = True) -> None:
        self.tracker = tracker
        self.extended = extended

    def observe_rollout_batch(self, batch: PolicyBatch) -> None:
        """Record all that a batch holds: sizes, lengths, rewards, advantages, staleness and the mismatch."""
        log_batch_stats(batch, self.tracker)
        advantages = batch.token_advantages
        if advantages is not None:
            log_advantage_stats(advantages, batch.mask, self.tracker)
        self.observe_versions(batch)
        self.observe_mismatch(batch)

    def observe_mismatch(self, batch: PolicyBatch) -> None:
        """Record the mismatch alone, for loops that compute the trainer's log-probabilities later."""
        if batch.trainer_logp is None or batch.rollout_logp is None:
            return
        log_train_inference_stats(
            batch.trainer_logp,
            batch.rollout_logp,
            batch.mask,
            self.tracker,
            extended=self.extended,
            versions=batch.versions,
            current_version=batch.current_version,
            mask_at_predictions=batch.mask_at_predictions,
            advantages=batch.token_advantages,
        )

    def observe_versions(self, batch: PolicyBatch) -> None:
        """Record the staleness alone, for loops that use a batch in several updates."""
        if batch.versions is not None and batch.current_version is not None:
            log_version_stats(
                batch.versions,
                batch.mask,
                batch.current_version,
                self.tracker,
                mask_at_predictions=batch.mask_at_predictions,
            )

    def observe_update(self, update: PolicyUpdate) -> None:
        """Record a training forward of the update."""
        log_update_stats(update, self.tracker)
