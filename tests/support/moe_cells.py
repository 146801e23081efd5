"""One way to train a mixture of experts: how it is wrapped, checkpointed and compiled, and what a step does."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
from support.reports import collect_messages
from support.tiny_trainer import moe_model
from support.toy_moe import Block, ToyMoE, batches
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from areal_callbacks.integrations.fsdp import track

STEPS = 3


class Cell(NamedTuple):
    """Wrapper, checkpointing, compilation, backend and the content of a step; see the functions of these names."""

    wrapper: str
    checkpointing: str
    compiled: str
    backend: str
    step: str


class Outcome(NamedTuple):
    """What a cell gave on one rank: exported counts by layer, this rank's own recount, graphs, what was reported."""

    counted: list[list[int]]
    expected: list[list[int]]
    graphs_after_first_step: int
    graphs: int
    messages: list[str]


def run(group: Any, *values: str) -> tuple[Any, ...]:
    """Train a cell with our metrics, and an uncompiled twin with the recount; the fields of an outcome."""
    with collect_messages() as messages, tempfile.TemporaryDirectory() as folder:
        return *_run(Cell(*values), folder), messages


def _run(cell: Cell, folder: str) -> tuple[Any, ...]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    twin, call = build(cell._replace(compiled="no"))
    recount = Recount(twin)
    for step in range(STEPS):
        train_step(cell, twin, call, step)
    model, call = build(cell)
    graphs = []
    with track(model, throughput=False, output_dir=folder, report=False) as metrics:
        for step in range(STEPS):
            with metrics.step():
                train_step(cell, model, call, step)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        counted = [layer.counts.tolist() for layer in metrics.export(STEPS).expert_loads or ()]
    return counted, recount.rows.tolist(), graphs[0], graphs[-1]


def build(cell: Cell) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The model, and how the loop calls it."""
    is_hugging_face = cell.checkpointing.startswith("hf")
    model = moe_model(attention="eager", experts_implementation="batched_mm") if is_hugging_face else ToyMoE()
    model.train()
    model = _peft(model, is_hugging_face) if cell.wrapper == "peft" else model
    _checkpoint(cell, model)
    if cell.compiled == "blocks":
        for layer in _layers(model):
            layer.compile(backend=cell.backend, fullgraph=cell.checkpointing in ("no", "selective", "whole"))
    model = _wrap(cell, model)
    whole = cell.wrapper in ("no", "peft") and cell.checkpointing == "no"
    if cell.compiled == "in place":
        model.compile(backend=cell.backend, fullgraph=whole)
    if cell.compiled == "whole":
        compiled: Any = torch.compile(model, backend=cell.backend, fullgraph=whole)
        return compiled, _call(cell, compiled)
    return model, _call(cell, model)


def train_step(cell: Cell, model: nn.Module, call: Callable[[Tensor], Tensor], step: int) -> None:
    """Forward and backward of two micro-batches, among other things."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    first, second = batches(2, seed=10 * step + rank)
    if cell.step == "several forwards":
        torch.autograd.backward(call(first).float().mean() + call(second).float().mean())
    else:
        for batch in (first, second):
            torch.autograd.backward(call(batch).float().mean())
            if cell.step == "idle forwards":
                _idle_forwards(model, batch)
            if cell.step == "exceptions":
                _failing_forward(call, batch)
    model.zero_grad()


def _idle_forwards(model: nn.Module, batch: Tensor) -> None:
    """In training mode without gradients, and in evaluation mode with them."""
    with torch.no_grad():
        model(batch)
    model.eval()
    model(batch)
    model.train()


def _failing_forward(call: Callable[[Tensor], Tensor], batch: Tensor) -> None:
    try:
        call(torch.full_like(batch, 10**6))
    except (IndexError, RuntimeError):
        return
    raise AssertionError("an index beyond the vocabulary should have raised")


def _layers(model: nn.Module) -> list[nn.Module]:
    kinds = ("Block", "Qwen3MoeDecoderLayer")
    return [module for module in model.modules() if any(cls.__name__ in kinds for cls in type(module).__mro__)]


def _peft(model: nn.Module, is_hugging_face: bool) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj" if is_hugging_face else "experts"]))


def _checkpoint(cell: Cell, model: Any) -> None:
    if cell.checkpointing.startswith("hf"):
        if cell.wrapper == "peft":
            model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": cell.checkpointing == "hf reentrant"})
    elif cell.checkpointing == "checkpoint_wrapper":
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    elif cell.checkpointing == "selective":
        contexts = functools.partial(create_selective_checkpoint_contexts, _keep_matrix_products)
        for layer in _layers(model):
            layer.forward = functools.partial(_checkpointed, layer.forward, contexts)


def _checkpointed(forward: Callable[..., Any], contexts: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts)


def _keep_matrix_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _wrap(cell: Cell, model: nn.Module) -> nn.Module:
    if cell.wrapper == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if cell.wrapper == "fsdp1":
        policy = ModuleWrapPolicy({type(layer) for layer in _layers(model)})
        cpu = torch.device("cpu")
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True, device_id=cpu)
    if cell.wrapper == "fsdp2":
        precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in _layers(model):
            fully_shard(layer, mp_policy=precision)
        sharded: Any = fully_shard(model, mp_policy=precision)
        return cast("nn.Module", sharded)
    return model


def _call(cell: Cell, model: nn.Module) -> Callable[[Tensor], Tensor]:
    def plain(batch: Tensor) -> Tensor:
        output = model(batch)
        return output if isinstance(output, Tensor) else cast("Tensor", output.logits)

    def reentrant(batch: Tensor) -> Tensor:  # needs an input with gradients
        tracked = torch.zeros((), requires_grad=True)
        return cast("Tensor", checkpoint(lambda ids, _: plain(ids), batch, tracked, use_reentrant=True))

    if cell.checkpointing != "whole":
        return plain
    if cell.wrapper in ("no", "peft"):
        return reentrant
    return lambda batch: checkpoint(plain, batch, use_reentrant=False)


class Recount:
    """A second, stateless rule in plain hooks, with NumPy: no flag of an outermost module, but the autograd node.

    A call trains iff it is in training mode with gradients, outside backward or inside a reentrant checkpoint's node
    (there the first call ran without gradients).
    """

    def __init__(self, model: nn.Module) -> None:
        modules: list[Any] = [module for module in model.modules() if hasattr(module, "top_k")]
        names = ["".join(cls.__name__ for cls in type(module).__mro__) for module in modules]
        routers = [one for one, name in zip(modules, names) if "Router" in name and hasattr(one, "num_experts")]
        self.rows = np.zeros((len(routers), routers[0].num_experts), dtype=np.int64)
        for row, router in zip(itertools.count(), routers):
            router.register_forward_hook(functools.partial(self._count, row))

    def _count(self, row: int, router: nn.Module, _: Any, output: Any) -> None:
        node = torch._C._current_autograd_node()
        in_backward = torch._C._current_graph_task_id() != -1
        if not torch.is_grad_enabled() or not router.training:
            return
        if not in_backward or (node is not None and node.name().endswith("CheckpointFunctionBackward")):
            ids = next(part for part in output if not part.is_floating_point() and part.dim() == 2)
            self.rows[row] += np.bincount(ids.numpy().ravel(), minlength=self.rows.shape[1])
