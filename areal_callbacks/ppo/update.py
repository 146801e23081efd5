"""The data of one training forward of a policy update, in one record."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from areal_callbacks.ppo.clip import Clip
from areal_callbacks.ppo.tensors import check_per_token, expand_to_tokens


@dataclass(frozen=True, eq=False)
class PolicyUpdate:
    """One training forward of a policy update; tensors are only read, and may be on any device.

    Attributes:
        mask: ``[..., T]``, boolean or 0/1: tokens in the loss. Sequences lie along the last dimension.
        new_logp: float, shape of the mask: log-probabilities under the policy that is optimised.
        old_logp: float, shape of the mask: those before the update (of the proximal policy, if it is recomputed).
        advantages: float, ``[..., T]`` or ``[...]`` for one per sequence; clipping needs them.
        entropy: float, shape of the mask: of the distribution at each position.
        loss: float, shape of the mask.
        clip: where the loss clips; None for a loss that does not.
        sequence_level: the ratio is that of a whole sequence, per token: exp of the mean of new - old over its tokens
            (GSPO: Zheng et al., "Group Sequence Policy Optimization", 2025).

    Raises:
        ValueError: a tensor has another shape, also one that could be broadcast.
    """

    mask: Tensor
    new_logp: Tensor
    old_logp: Tensor
    _: KW_ONLY
    advantages: Tensor | None = None
    entropy: Tensor | None = None
    loss: Tensor | None = None
    clip: Clip | None = None
    sequence_level: bool = False

    def __post_init__(self) -> None:
        check_per_token(self.mask, new_logp=self.new_logp, old_logp=self.old_logp)
        check_per_token(self.mask, advantages=self.token_advantages, entropy=self.entropy, loss=self.loss)

    @property
    def token_advantages(self) -> Tensor | None:
        """The advantages in the shape of the mask."""
        return expand_to_tokens(self.advantages, self.mask)
