"""Modules that only look like routers, for what is recognised and where it stands."""

from __future__ import annotations

from typing import Any

from torch import nn

from areal_callbacks.monitors.moe_balance.routers import find_routers


class DemoTopKRouter(nn.Module):
    """Only its attributes matter here."""

    def __init__(self, experts: int = 4, top_k: int = 2, **more: Any) -> None:
        super().__init__()
        self.num_experts, self.top_k = experts, top_k
        for name, value in more.items():
            setattr(self, name, value)


def tree(names: dict[str, nn.Module] | list[str]) -> nn.Module:
    """A module with a router at each of these dotted names."""
    root = nn.Module()
    for name in names:
        module: Any = root
        *path, last = name.split(".")
        for piece in path:
            if piece not in module._modules:
                module.add_module(piece, nn.Module())
            module = module._modules[piece]
        module.add_module(last, names[name] if isinstance(names, dict) else DemoTopKRouter())
    return root


def find_places(model: nn.Module | list[nn.Module]) -> dict[str, tuple[str, int]]:
    """Stack and layer of every router by its name."""
    return {router.name: (router.stack, router.layer) for router in find_routers(model)}
