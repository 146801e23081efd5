"""The least that trains on token ids, for tests of how a host calls it: an embedding and its square."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ROWS, WIDTH = 8, 5


class Words(nn.Module):
    """The same weights whenever it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 4)
        with torch.no_grad():
            self.table.weight.copy_(torch.arange(64).view(16, 4) / 64 - 0.4)

    def forward(self, input_ids: Tensor) -> Tensor:
        loss: Tensor = self.table(input_ids).square().mean()
        return loss


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """``ROWS`` rows of ``WIDTH`` token ids."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": torch.arange(WIDTH) + index}


def batches(size: int = 2) -> list[dict[str, Tensor]]:
    """The rows in batches."""
    return list(torch.utils.data.DataLoader(Rows(), size))


def weights_of(model: nn.Module) -> list[float]:
    """All parameters as numbers, to be compared exactly."""
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


def outcome_of(run: Any, *args: Any) -> Any:
    """What it returns, or the exception that it ends with as words."""
    try:
        return run(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
