"""How long the sequences of a batch are, read from the arguments of a model's forward without a host sync."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from areal_callbacks.monitors.forward_inputs import Inputs, read_inputs
from areal_callbacks.monitors.throughput.padding import find_padding
from areal_callbacks.monitors.throughput.segments import find_starts, segment_ids
from areal_callbacks.monitors.throughput.texts import Text, find_mask, find_texts
from areal_callbacks.monitors.throughput.token_batch import TokenBatch, read_batch, tells_apart


class Lengths(NamedTuple):
    """Sequence lengths of one batch.

    Attributes:
        values: 1-D integer tensor on the batch's device; zeros are no sequences.
        bound: no length is larger; known on the host.
        is_paired: of an encoder or a decoder whose call belongs to that of both.
        pairs: the lengths of sources and of the targets that attend to them, where these are told; the targets are
            among the values.
        rule: what told them.
        marks: the mask ``[rows, width]`` that alone tells them, if one does.
        is_full: the shape of the batch alone tells them.
    """

    values: Tensor
    bound: int
    is_paired: bool = False
    pairs: tuple[Tensor, Tensor] | None = None
    rule: str = ""
    marks: Tensor | None = None
    is_full: bool = False

    def attend_to(self, sources: Tensor | None) -> Lengths:
        """As those of targets. Packed ones do not tell what each of them attends to."""
        if sources is None or len(sources) != len(self.values):
            return self
        return self._replace(is_paired=True, pairs=(sources, self.values))

    def add(self, other: Lengths) -> Lengths:
        """With those of another text."""
        rule = " and ".join(dict.fromkeys([self.rule, other.rule]))
        values = torch.cat([self.values, other.values])
        return Lengths(values, max(self.bound, other.bound), self.is_paired, self.pairs, rule)

    def join(self, sources: Lengths) -> Lengths:
        """As those of targets, and with those of their sources."""
        values = torch.cat([sources.values, self.values])
        bound = max(sources.bound, self.bound)
        return self.attend_to(sources.values)._replace(values=values, bound=bound, is_paired=True)


class Rows(NamedTuple):
    """Rows of a batch of which each is a sequence that is no part of a pair.

    Attributes:
        number: of rows.
        width: of each.
        mask: ``[rows, width]``, not 0 for what is no padding; None without padding.
    """

    number: int
    width: int
    mask: Tensor | None


def sequence_lengths(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    looked_up: Sequence[Tensor] | None = None,
    config: Any = None,
    names: Sequence[str] = (),
) -> Lengths | None:
    """The original lengths in the arguments of a call whose parameters have no known names.

    Token ids are what is called so, or else the first tensor, if it is a matrix of integers wide enough for them; and
    every further one of these that an embedding looks up. A mapping, a dataclass, a sequence among the arguments, as a
    batch comes to a training step, is looked into.

    Args:
        args: positional arguments.
        kwargs: arguments by keyword.
        looked_up: in embeddings, which tokens without a name are; None if unknown.
        config: names the number of padding.
        names: of the positional parameters.

    Returns:
        None where the arguments hold no tokens.
    """
    inputs = read_inputs(names, args, kwargs)
    found = read_texts(inputs, find_texts(inputs, looked_up), config)
    return functools.reduce(Lengths.add, found) if found else None


def read_texts(inputs: Inputs, texts: Sequence[Text], config: Any) -> list[Lengths]:
    """The lengths of each text of one call; what else the call was given is told of the first."""
    found = []
    for text in texts:
        mask = find_mask(inputs.named, text, texts)
        told = {**(inputs.named if text is texts[0] else {}), "input_ids": text.ids}
        batch = read_batch(told if mask is None else {**told, "attention_mask": mask}, config=config)
        found += [] if batch is None else [lengths_of(batch)]
    return found


def lengths_of(batch: TokenBatch) -> Lengths:
    """The original lengths: padding is not counted, prompt and response both are."""
    return _lengths_of(batch)._replace(rule=batch.rule)


def _lengths_of(batch: TokenBatch) -> Lengths:
    starts = find_starts(batch)
    if starts is None and batch.mask is not None and not batch.ends_with_labels:
        return Lengths(count_marks(batch.mask), batch.width, marks=batch.mask)
    padding = find_padding(batch, starts)
    if starts is not None:
        present = torch.ones_like(starts) if padding is None else ~padding
        lengths = torch.zeros(starts.numel(), dtype=torch.long, device=starts.device)
        lengths.scatter_add_(0, segment_ids(starts), present.reshape(-1).long())
        return Lengths(lengths, batch.width if batch.boundaries is None else batch.rows * batch.width)
    if padding is not None:
        return Lengths((~padding).sum(-1), batch.width)
    values = torch.full((batch.rows,), batch.width, dtype=torch.long, device=batch.device)
    return Lengths(values, batch.width, is_full=True)


def count_marks(mask: Tensor) -> Tensor:
    """Tokens of each number in each row of a mask ``[rows, width]``, where integers tell packed sequences apart; of
    each row, where it has other numbers."""
    if not tells_apart(mask) or _is_zero_or_one(mask):
        return mask.count_nonzero(-1)
    width = mask.shape[-1]
    numbers = mask.long().clamp(0, width)
    counts = torch.zeros(len(mask), width + 1, dtype=torch.long, device=mask.device)
    return counts.scatter_add_(1, numbers, torch.ones_like(numbers))[:, 1:].reshape(-1)


def _is_zero_or_one(mask: Tensor) -> bool:
    """Known without a wait only of a mask on the host, where counting by numbers is slow."""
    return type(mask) is Tensor and mask.is_cpu and mask.numel() > 0 and mask.numpy().max() <= 1
