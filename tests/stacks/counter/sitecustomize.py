"""Counts what trains in every process, without the package: ids that are embedded and assignments that experts get.

A call counts if it is made in training mode with gradients, outside of backward. At the exit of the process the counts
are in ``$COUNTS/<pid>.json``: tokens that are not the padding id, and the assignments of each layer.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import json
import os
import sys
from typing import Any

PAD = int(os.environ.get("COUNTED_PAD", "0"))
tokens: list[int] = []
layers: dict[int, Any] = {}
listed: dict[int, tuple[int, int, int]] = {}


def count(module: Any, args: Any, kwargs: Any) -> None:
    import torch

    name = type(module).__name__
    if not (name == "Embedding" or name.endswith(("Experts", "MoE")) or id(module) in listed):
        return
    if not (module.training and torch.is_grad_enabled()) or torch._C._current_graph_task_id() != -1:
        return
    given = [value for value in (*args, *kwargs.values()) if torch.is_tensor(value)]
    if name == "Embedding":
        tokens.append(int((given[0] != PAD).sum()))
    elif name == "GroupedExperts":  # of torchtitan: rows in the order of the experts, and how many each gets
        add(id(module), given[1])
    elif name.endswith("Experts"):
        chosen = next(value for value in given if value.dtype == torch.int64)
        if hasattr(module, "num_experts"):
            add(id(module), torch.bincount(chosen.reshape(-1), minlength=module.num_experts))
    elif name.endswith("MoE"):
        experts = getattr(module, "experts", ())
        experts = list(experts) if isinstance(experts, torch.nn.ModuleList) else []
        listed.update({id(expert): (id(module), number, len(experts)) for number, expert in enumerate(experts)})
    else:
        layer, number, experts = listed[id(module)]
        add(layer, torch.nn.functional.one_hot(torch.tensor(number), experts) * len(given[0]))


def add(layer: int, counts: Any) -> None:
    layers[layer] = layers.get(layer, 0) + counts


def write() -> None:
    if tokens:
        told = {"tokens": sum(tokens), "routed": [counts.tolist() for counts in layers.values()]}
        with open(os.path.join(os.environ["COUNTS"], f"{os.getpid()}.json"), "w") as file:
            json.dump(told, file)


class AfterTorch(importlib.abc.MetaPathFinder):
    """Stands before every call of a module once torch's modules are there."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch.nn.modules.module":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            original = module.Module.__call__

            def call(self: Any, *args: Any, **kwargs: Any) -> Any:
                count(self, args, kwargs)
                return original(self, *args, **kwargs)

            module.Module.__call__ = call

        spec.loader.exec_module = exec_module
        return spec


if "COUNTS" in os.environ:
    sys.meta_path.insert(0, AfterTorch())
    atexit.register(write)
