"""A recount of a Megatron training where it looks up ids and hands tokens to experts, without a hook of ours.

Loaded by rank processes, never by the test session: importing megatron.core compiles small functions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import VocabParallelEmbedding
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.token_dispatcher import MoEAllGatherTokenDispatcher, MoEAlltoAllTokenDispatcher


class Counts(NamedTuple):
    """Of all ranks since the last call of ``take``: ids looked up, and assignments by layer."""

    tokens: int
    routed: dict[int, list[int]]


class MegatronRecount:
    """Wraps, while entered, the embedding and the token dispatchers of megatron.core in this process.

    A call counts if it has gradients and, inside backward, only as the second run of a checkpoint of Megatron's, whose
    first has none. Multi-token prediction embeds the same ids again, and is left out. Tensor-parallel ranks look up the
    same ids, and dispatch different tokens (sequence parallelism).

    Args:
        chunks: of the model.
        layers: of the decoder.
        experts: of each layer.
    """

    def __init__(self, chunks: list[Any], layers: int, experts: int) -> None:
        self._tokens = 0
        self._table = torch.zeros(layers, experts, dtype=torch.int64)
        named = (pair for chunk in chunks for pair in chunk.named_modules())
        moe_layers = [module for name, module in named if isinstance(module, MoELayer) and "mtp" not in name]
        self._layer_of = {id(layer.token_dispatcher): layer.layer_number - 1 for layer in moe_layers}
        self._originals: list[tuple[type, str, Callable[..., Any]]] = []

    def __enter__(self) -> Self:
        self._wrap(VocabParallelEmbedding, "forward", self._embed)
        for dispatcher in (MoEAlltoAllTokenDispatcher, MoEAllGatherTokenDispatcher):
            self._wrap(dispatcher, "dispatch_preprocess", self._dispatch)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for owner, name, original in self._originals:
            setattr(owner, name, original)

    def _wrap(self, owner: type, name: str, see: Callable[..., None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            see(module, *args, **kwargs)
            return original(module, *args, **kwargs)

        self._originals.append((owner, name, original))
        setattr(owner, name, call)

    def _embed(self, module: Any, ids: torch.Tensor) -> None:
        if _trains(module) and parallel_state.get_tensor_model_parallel_rank() == 0 and not _is_predicting():
            self._tokens += ids.numel()

    def _dispatch(self, dispatcher: Any, hidden: Any, routing_map: torch.Tensor, probs: Any) -> None:
        layer = self._layer_of.get(id(dispatcher))
        if layer is not None and _trains(None):
            self._table[layer] += routing_map.reshape(-1, self._table.shape[1]).long().sum(0)

    def take(self) -> Counts:
        """Sum over the ranks, and start over; every rank calls it."""
        summed = torch.cat([torch.tensor([self._tokens]), self._table.flatten()])
        dist.all_reduce(summed)
        self._tokens = 0
        routed = summed[1:].view_as(self._table).tolist()
        self._table.zero_()
        return Counts(int(summed[0]), {layer: row for layer, row in enumerate(routed) if any(row)})


def _trains(module: Any) -> bool:
    if not torch.is_grad_enabled() or (module is not None and not module.training):
        return False
    node: Any = torch._C._current_autograd_node()
    return torch._C._current_graph_task_id() == -1 or node.name().endswith("CheckpointFunctionBackward")


def _is_predicting() -> bool:
    """A layer of multi-token prediction runs."""
    frame = sys._getframe(1)
    while frame is not None:
        if type(frame.f_locals.get("self")).__name__.startswith("MultiTokenPrediction"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
