"""Texts that modules of nobody's library are given, by hand, in the metrics and in the recount."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recount import train_beside
from torch import Tensor, nn

SRC = torch.tensor([[5, 6, 7, 8, 9, 0, 0], [5, 6, 7, 0, 0, 0, 0]])  # 5 and 3
TGT = torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])  # 3 and 2
HIDDEN = {"src_key_padding_mask": SRC == 0, "tgt_key_padding_mask": TGT == 0}


class Texts(nn.Module):
    """Embeds what it is given, each text in a vocabulary of its own."""

    def __init__(self, texts: int = 2, pad: int | None = None) -> None:
        super().__init__()
        self.words = nn.ModuleList(nn.Embedding(64 + 16 * index, 4, padding_idx=pad) for index in range(texts))
        self.head = nn.Linear(4, 4)

    def embed(self, *texts: Tensor) -> Tensor:
        return sum((self.head(words(ids)).sum() for words, ids in zip(self.words, texts)), torch.zeros(()))


class Translator(Texts):
    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        return self.embed(src, tgt)


class Shifting(Translator):
    """The last word of the target is only predicted."""

    def forward(self, src: Tensor, tgt: Tensor, **masks: Tensor) -> Tensor:  # type: ignore[override]
        return self.embed(src, tgt[:, :-1])


class Fairseq(Texts):
    def forward(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor) -> Tensor:
        return self.embed(src_tokens, prev_output_tokens)


class Triplet(Texts):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.embed(batch["anchor"], batch["positive"], batch["negative"])


class Halves(Texts):
    """Two passages in one matrix ``[B, 2, T]``."""

    def forward(self, pairs: Tensor) -> Tensor:
        return self.embed(pairs[:, 0]) + self.embed(pairs[:, 1])


class Segments(Texts):
    """Embeds segments and positions, which are no texts."""

    def forward(self, x: Tensor, segments: Tensor, positions: Tensor, pad_mask: Tensor) -> Tensor:
        return self.embed(x, segments, positions)


class Grounded(Texts):
    """Names one of its texts as everybody does."""

    def forward(self, input_ids: Tensor, context_ids: Tensor, attention_mask: Tensor, context_mask: Tensor) -> Tensor:
        return self.embed(input_ids, context_ids)


class Within(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.as_tensor(self.inner(**batch))


class Encoder(Texts):
    def forward(self, src: Tensor, padding_mask: Tensor) -> Tensor:
        return self.embed(src)


class Columns(Texts):
    """Texts stand in columns, as torch's modules take them by default; their masks have rows."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        return self.embed(src)


class Named(Texts):
    def forward(self, input_ids: Tensor, lengths: Tensor, target_lengths: Tensor | None = None) -> Tensor:
        return self.embed(input_ids)


class Bert(Texts):
    """BERT's own scripts: 1 is no padding."""

    def forward(self, input_ids: Tensor, input_mask: Tensor, segment_ids: Tensor) -> Tensor:
        return self.embed(input_ids)


GROUNDED = {
    "input_ids": TGT, "context_ids": SRC, "attention_mask": (TGT != 0).long(), "context_mask": (SRC != 0).long(),
}  # fmt: skip
BLOCKED = torch.zeros(SRC.shape).masked_fill(SRC == 0, float("-inf"))


@pytest.mark.parametrize(
    ("make", "args", "kwargs", "tokens"),
    [
        (Translator, (SRC, TGT), {}, 14 + 8),
        (Translator, (SRC, TGT), HIDDEN, 8 + 5),
        (Translator, (SRC, TGT, *HIDDEN.values()), {}, 8 + 5),
        (Translator, (SRC,), {"tgt": TGT, "src_key_padding_mask": SRC == 0}, 8 + 8),
        (lambda: Translator(pad=0), (SRC, TGT), {}, 8 + 5),
        (Shifting, (SRC, TGT), HIDDEN, 8 + 3 + 2),
        (Shifting, (SRC, torch.tensor([[5, 6, 7, 8], [5, 6, 7, 0]])), {}, 14 + 6),
        (Fairseq, (SRC, torch.tensor([5, 3]), TGT), {}, 8 + 8),
        (Columns, (SRC.t(), SRC == 0), {}, 8),
        (Columns, (SRC.t().contiguous(), SRC == 0), {}, 8),
        (Columns, (TGT.repeat(3, 1).t(), TGT.repeat(3, 1) == 0), {}, 3 * 5),  # wider than long
        (Columns, (SRC.t(),), {"lengths": torch.tensor([5, 3])}, 8),
        (Columns, (SRC,), {"lengths": torch.tensor([5, 3])}, 8),
        (Named, (SRC,), {"lengths": torch.tensor([5, 3]), "target_lengths": torch.tensor([1, 1])}, 8),
        (lambda: Fairseq(pad=0), (SRC, torch.tensor([5, 3]), TGT), {}, 8 + 5),
        (lambda: Triplet(3), ({"anchor": SRC, "positive": TGT, "negative": TGT + 1, "labels": TGT},), {}, 14 + 8 + 8),
        (lambda: Halves(1, pad=0), (torch.stack([TGT, TGT + 1], 1),), {}, 5 + 8),
        (lambda: Segments(3), (SRC, SRC * 0, SRC * 0 + 1, SRC == 0), {}, 8),
        (Grounded, (), GROUNDED, 5 + 8),
        (lambda: Within(Grounded()), (GROUNDED,), {}, 5 + 8),
        (Encoder, (SRC, SRC == 0), {}, 8),
        (Encoder, (SRC, BLOCKED), {}, 8),
        (Encoder, (SRC, (SRC == 0)[:, None]), {}, 8),
        (Bert, (SRC, (SRC != 0).long(), SRC * 0), {}, 8),
    ],
)  # fmt: skip
def test_every_text_counts_without_its_padding(
    make: Callable[[], nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], tokens: int, tmp_path: Path
) -> None:
    export, totals = train_beside(make(), tmp_path, lambda model: model(*args, **kwargs))
    assert export.metrics["train_perf/tokens"] == totals.tokens == tokens
