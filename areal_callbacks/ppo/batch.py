"""The data of one rollout batch, in one record."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from areal_callbacks.ppo.tensors import check_per_sequence, check_per_token, expand_to_tokens


@dataclass(frozen=True, eq=False)
class PolicyBatch:
    """A rollout batch of B sequences and T positions, before tokens are filtered and before the policy is updated.

    Only the mask is required; metrics of a field that is None are not recorded. Tensors are only read, and may be on
    any device. Position t of every ``[B, T]`` tensor describes the same generated token. Float stands for any floating
    dtype, 0/1 for boolean or for zeros and ones of any dtype. For another stack's batch, write a function that returns
    this record.

    Attributes:
        mask: ``[B, T]`` 0/1: generated tokens that are in the loss.
        trainer_logp: ``[B, T]`` float: the trainer's log-probabilities of the sampled tokens.
        rollout_logp: ``[B, T]`` float: those of the rollout engine. The mismatch needs both.
        advantages: ``[B, T]`` float, or ``[B]`` for one per sequence.
        versions: ``[B, T]`` integer: the policy version that sampled each token, negative where none did.
        mask_at_predictions: all but the versions stand at the positions that predict the tokens, one to the left, as in
            AReaL. None: as the versions tell, see :func:`~areal_callbacks.ppo.positions.is_at_predictions`.
        current_version: the last published version. Staleness needs both.
        attention_mask: ``[B, S]`` 0/1: tokens of prompts and responses. If None, every position of ``mask`` is a
            token, and lengths that are not given are not recorded.
        kl_rewards: ``[B, T]`` float: the part of the reward that is a KL penalty.
        final_reward: ``[B, T]`` float: the reward that advantages are computed from.
        task_reward: ``[B]`` float: the score of a sequence.
        scored: ``[B]`` 0/1: sequences that have a task reward; None for all.
        prompt_len: ``[B]`` integer or float: tokens before the first generated one; if None, those of
            ``attention_mask``, whose last position is taken for that of ``mask``.
        seq_len: ``[B]`` integer or float: tokens of prompt and response; if None, those of ``attention_mask``.
        no_eos: ``[B]`` 0/1: sequences that were cut off before they ended.

    Raises:
        ValueError: a tensor has another shape, also one that could be broadcast.
    """

    mask: Tensor
    _: KW_ONLY
    trainer_logp: Tensor | None = None
    rollout_logp: Tensor | None = None
    advantages: Tensor | None = None
    versions: Tensor | None = None
    mask_at_predictions: bool | None = None
    current_version: int | None = None
    attention_mask: Tensor | None = None
    kl_rewards: Tensor | None = None
    final_reward: Tensor | None = None
    task_reward: Tensor | None = None
    scored: Tensor | None = None
    prompt_len: Tensor | None = None
    seq_len: Tensor | None = None
    no_eos: Tensor | None = None

    def __post_init__(self) -> None:
        if self.mask.dim() != 2:
            raise ValueError(f"mask has shape {list(self.mask.shape)}, expected [sequences, tokens]")
        check_per_token(self.mask, trainer_logp=self.trainer_logp, rollout_logp=self.rollout_logp)
        check_per_token(self.mask, advantages=self.token_advantages, versions=self.versions)
        check_per_token(self.mask, kl_rewards=self.kl_rewards, final_reward=self.final_reward)
        check_per_sequence(self.mask, task_reward=self.task_reward, scored=self.scored, no_eos=self.no_eos)
        check_per_sequence(self.mask, prompt_len=self.prompt_len, seq_len=self.seq_len)
        self._check_attention_mask()

    @property
    def token_advantages(self) -> Tensor | None:
        """The advantages as ``[B, T]``."""
        return expand_to_tokens(self.advantages, self.mask)

    def _check_attention_mask(self) -> None:
        mask, sequences = self.attention_mask, len(self.mask)
        if mask is not None and (mask.dim() != 2 or len(mask) != sequences or mask.shape[1] < self.mask.shape[1]):
            expected = f"[{sequences}, {self.mask.shape[1]} or more]"
            raise ValueError(f"attention_mask has shape {list(mask.shape)}, expected {expected}")
