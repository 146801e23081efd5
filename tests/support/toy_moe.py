"""A small transformer-like mixture of experts in torchtitan's manner: its routers, layer names and pipeline stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LAYERS, EXPERTS, TOP_K, WIDTH, VOCABULARY = 4, 6, 2, 16, 32


class TokenChoiceTopKRouter(nn.Module):
    """Puts out scores, expert indices and tokens per expert."""

    def __init__(self, experts: int, top_k: int) -> None:
        super().__init__()
        self.num_experts, self.top_k = experts, top_k
        self.gate = nn.Linear(WIDTH, experts, bias=False)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = torch.sigmoid(self.gate(hidden).float())
        top, indices = torch.topk(scores, self.top_k, dim=1)
        counts = torch.zeros(self.num_experts, device=hidden.device)
        return top, indices, counts.scatter_add(0, indices.reshape(-1), torch.ones_like(top).reshape(-1))


class GroupedExperts(nn.Linear):
    """Is told the rows of every expert, as torchtitan's; all experts are computed, which is quick for this size."""

    def __init__(self, experts: int) -> None:
        super().__init__(WIDTH, experts * WIDTH)
        self.num_experts = experts

    def forward(self, hidden: Tensor, num_tokens_per_expert: Tensor) -> Tensor:
        return super().forward(hidden)


class Block(nn.Module):
    """Adds the chosen experts' outputs."""

    def __init__(self, experts: int = EXPERTS, top_k: int = TOP_K) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = TokenChoiceTopKRouter(experts, top_k)
        self.experts = GroupedExperts(experts)

    def forward(self, hidden: Tensor) -> Tensor:
        flat = self.norm(hidden).reshape(-1, WIDTH)
        top, indices, counts = self.router(flat)
        weights = torch.zeros(len(flat), self.router.num_experts, dtype=top.dtype).scatter(1, indices, top)
        outputs = self.experts(flat, counts).view(len(flat), self.router.num_experts, WIDTH).float()
        added: Tensor = (weights.unsqueeze(-1) * outputs).sum(1).view_as(hidden).to(hidden.dtype)
        return hidden + added


class ToyMoE(nn.Module):
    """The layers ``kept`` of the whole model; the first part embeds, the last one has the head.

    ``experts`` may name a number for every layer.
    """

    def __init__(self, experts: Iterable[int] = (EXPERTS,) * LAYERS, kept: range | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = {str(index): Block(number) for index, number in enumerate(experts)}
        embedding, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        kept = range(len(blocks)) if kept is None else kept
        self.embedding = embedding if 0 in kept else None
        self.layers = nn.ModuleDict({name: block for name, block in blocks.items() if int(name) in kept})
        self.head = head if len(blocks) - 1 in kept else None

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = input_ids if self.embedding is None else self.embedding(input_ids)
        for layer in self.layers.values():
            hidden = layer(hidden)
        return hidden if self.head is None else self.head(hidden)


def batches(number: int, size: int = 2, length: int = 5, seed: int = 0) -> list[Tensor]:
    """Token ids ``[size, length]``."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (size, length), generator=generator) for _ in range(number)]


def routed_by_hand(model: nn.Module, inputs: Iterable[Tensor]) -> np.ndarray:
    """``[layers, experts]`` assignments of one pass over the inputs, from the routers' scores, sorted in NumPy."""
    routers: list[Any] = [module for module in model.modules() if hasattr(module, "gate")]
    rows = np.zeros((len(routers), max(router.num_experts for router in routers)), dtype=np.int64)

    def recount(index: int, router: Any, given: Tensor) -> None:
        scores = (given.detach().double() @ router.gate.weight.detach().double().T).numpy()
        chosen = np.argsort(-scores, axis=1)[:, : router.top_k]
        rows[index] += np.bincount(chosen.ravel(), minlength=rows.shape[1])

    handles = [
        router.register_forward_pre_hook(lambda module, args, index=index: recount(index, module, args[0]))
        for index, router in enumerate(routers)
    ]
    with torch.no_grad():
        for batch in inputs:
            model(batch)
    for handle in handles:
        handle.remove()
    return rows
