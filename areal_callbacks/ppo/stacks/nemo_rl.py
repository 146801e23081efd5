"""Training data of NeMo-RL (0.7.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.positions import count_prompt_tokens
from areal_callbacks.ppo.stacks.fields import mask_lengths, read_tensor, require
from areal_callbacks.ppo.tensors import expand_to_tokens


def from_nemo_rl(
    train_data: Mapping[str, Any],
    *,
    repeated_batch: Mapping[str, Any] | None = None,
    versions: Tensor | None = None,
    current_version: int | None = None,
) -> PolicyBatch:
    """The ``train_data`` of GRPO once it has ``prev_logprobs`` and ``advantages``.

    ``token_mask``, ``prev_logprobs``, ``generation_logprobs`` and ``advantages`` are ``[B, S]`` and stand at the
    tokens; the first token, which nothing predicts, is left out, as in NeMo-RL's losses. A sample whose ``sample_mask``
    is 0 has no token in the loss.

    Args:
        train_data: the dictionary.
        repeated_batch: its ``total_reward`` and ``truncated`` ``[B]`` are read, too.
        versions: of the weights that sampled, ``[B]`` or ``[B, S]``.
        current_version: the version to compare with.

    Raises:
        ValueError: there is no ``token_mask``, or a tensor has another shape.
    """
    tokens = require(read_tensor(train_data, "token_mask"), "token_mask")
    samples = read_tensor(train_data, "sample_mask")
    mask = tokens if samples is None else (tokens != 0) & (samples != 0).unsqueeze(-1)
    lengths = read_tensor(train_data, "input_lengths")
    attention_mask = None if lengths is None else mask_lengths(lengths, tokens.shape[-1])
    more = {} if repeated_batch is None else repeated_batch
    return PolicyBatch(
        mask[:, 1:],
        trainer_logp=_drop_first(read_tensor(train_data, "prev_logprobs")),
        rollout_logp=_drop_first(read_tensor(train_data, "generation_logprobs")),
        advantages=_drop_first(read_tensor(train_data, "advantages")),
        attention_mask=attention_mask,
        prompt_len=None if attention_mask is None else count_prompt_tokens(attention_mask, tokens),
        task_reward=read_tensor(more, "total_reward"),
        no_eos=read_tensor(more, "truncated"),
        versions=_drop_first(expand_to_tokens(versions, mask)),
        mask_at_predictions=False,
        current_version=current_version,
    )


def _drop_first(values: Tensor | None) -> Tensor | None:
    return None if values is None else values[:, 1:]
