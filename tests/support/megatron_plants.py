"""A job of the ranks: everything that we do in a pretraining raises."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.faults import close_sessions, discover, planted
from support.megatron_jobs import pretrain
from support.reports import collect_messages
from support.tiny_megatron import Layout

from areal_callbacks.core import rendezvous


def _of_all_ranks(places: list[Any]) -> list[Any]:
    """In one order: a stage lacks places of another, and a rank that breaks alone leaves the others in a collective."""
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, places)
    return list(dict.fromkeys(itertools.chain(*of_ranks)))


def plant_everywhere(group: Any, variant: str, arguments: list[str], folder: str) -> list[Any]:
    """Let all that we do in a pretraining raise, kind by kind; [places, messages, same weights] of each training."""

    def weights(*, measure: bool = True) -> torch.Tensor:
        chunks: list[torch.nn.Module] = []
        pretrain_tiny = importlib.import_module("pretrain_tiny")
        provider = pretrain_tiny.model_provider

        def remember(layout: Layout) -> Any:
            result = provider(layout)
            chunks.extend(result[0])
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pretrain_tiny, "model_provider", remember)
            pretrain(None, variant, arguments, {"output_dir": folder}, install=measure)
        return torch.cat([parameter.detach().flatten() for chunk in chunks for parameter in chunk.parameters()])

    patch, results = pytest.MonkeyPatch(), []
    with pytest.MonkeyPatch.context() as shorter:
        shorter.setattr(rendezvous, "TIMEOUT", 0.3)
        expected, places = weights(measure=False), _of_all_ranks(discover(patch, weights))
        kinds = [{place for place in places if place.kind == kind} for kind in ("wrap", "hook")]
        for chosen in [*kinds, *({place} for place in places if place.kind in ("entry", "guarded"))]:
            with planted(patch, chosen, "before"), collect_messages() as messages:
                same = torch.equal(weights(), expected)
            results.append([sorted(place.name for place in chosen), messages, same])
            close_sessions()
    return results
