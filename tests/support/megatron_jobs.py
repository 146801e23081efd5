"""What the ranks run: megatron.core on the CPU, measured. Loaded by rank processes, never by the test session."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before megatron.core decorates its small functions

import torch
import torch.distributed as dist
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.rerun_state_machine import RerunDataIterator
from support.megatron_cpu import pretend_cuda
from support.megatron_recount import MegatronRecount
from support.reports import collect_messages
from support.tiny_megatron import Layout, Training, batches, build, forward_step, parallel

from areal_callbacks import stats_tracker
from areal_callbacks.core.types import Export
from areal_callbacks.integrations import megatron

sys.path.insert(0, str(Path(__file__).with_name("megatron_lm")))
from megatron.training import common

pretend_cuda()


def train(group: Any, layout: dict[str, Any], steps: int = 2, **options: Any) -> dict[str, Any]:
    """Train a layout for some steps, with an export after each, and recount it independently."""
    with parallel(Layout(**layout)), tempfile.TemporaryDirectory() as folder, collect_messages() as messages:
        training = build(Layout(**layout))
        options = {"output_dir": folder, "report": False, **options}
        recount = MegatronRecount(training.chunks, training.layout.layers, training.config.num_moe_experts or 1)
        with megatron.attach(training.chunks, training.optimizer, **options) as metrics, recount:
            exports, collectives, recounts = [], [], []
            for step in range(steps):
                with metrics.step():
                    _step(training, step)
                with _collectives() as count:
                    exports.append(_plain(metrics.export(step + 1)))
                collectives.append(count())
                recounts.append(recount.take()._asdict())
            topology = metrics.topology
        return {
            "exports": exports,
            "collectives": collectives,
            "recounts": recounts,
            "messages": messages,
            "is_writer": topology.is_writer,
            "left": _left(training),
        }


def _step(training: Training, step: int) -> None:
    training.zero_gradients()
    training.forward_backward(training.iterators(batches(step, training.layout)))
    assert training.optimizer.step()[0]


def _plain(export: Export) -> dict[str, Any]:
    loads = export.expert_loads
    return {
        "metrics": export.metrics,
        "loads": {} if loads is None else {(layer.stack, layer.layer): layer.counts.tolist() for layer in loads},
    }


@contextlib.contextmanager
def _collectives() -> Iterator[Callable[[], int]]:
    """How many collectives ran on the world's group, by the group's own sequence number."""
    world: Any = dist.group.WORLD
    before = world._get_sequence_number_for_group()
    yield lambda: world._get_sequence_number_for_group() - before


def _left(training: Training) -> dict[str, Any]:
    """What is still attached to the host's objects after the session was closed."""
    hooks: Counter[str] = Counter()
    for chunk in training.chunks:
        for module in chunk.modules():
            for kind in ("_forward_hooks", "_forward_pre_hooks"):
                hooks[kind] += sum("areal" in hook.__module__ for hook in getattr(module, kind).values())
    return {"hooks": sum(hooks.values()), "step": "step" in vars(training.optimizer)}


def pretrain(
    group: Any,
    variant: str,
    arguments: list[str],
    options: dict[str, Any] | None = None,
    install: bool = True,
) -> dict[str, Any]:
    """Run the script pretrain_tiny.py with a variant of the training loop, from install() to uninstall()."""
    stats_tracker.collect_all()
    training = importlib.import_module(f"megatron.training.{variant}")
    pretrain_tiny = importlib.import_module("pretrain_tiny")
    originals = {name: value for name, value in vars(training).items() if callable(value)}
    next_batch, sys.argv = RerunDataIterator.__next__, ["pretrain_tiny.py", *arguments]
    error = None
    with collect_messages() as messages:
        if install:
            megatron.install(training, **{"report": False, **(options or {})})
        try:
            pretrain_tiny.main(training.pretrain)
        except (FloatingPointError, SystemExit) as caught:
            error = repr(caught)
    restored_before = originals == {name: value for name, value in vars(training).items() if callable(value)}
    megatron.uninstall()
    return {
        "error": error,
        "record": common.record(),
        "messages": messages,
        "restored_by_itself": restored_before,
        "restored": originals == {name: value for name, value in vars(training).items() if callable(value)}
        and RerunDataIterator.__next__ is next_batch,
    }


def install_error(group: Any, variant: str, missing: str, replacement: str | None) -> str:
    """What install() says about a module without a function, or with one of another signature."""
    training = importlib.import_module(f"megatron.training.{variant}")
    module = types.ModuleType("a_fork.training")
    vars(module).update(vars(training))
    vars(module)["__name__"] = "a_fork.training"
    if replacement is not None:
        setattr(module, missing, eval(replacement))
    else:
        delattr(module, missing)
    before = dict(vars(module))
    with collect_messages() as logged:
        megatron.install(module)
    if logged:
        assert vars(module) == before
        return "\n".join(logged)
    megatron.uninstall()
    return ""


def install_in_a_module_that_nobody_imported(group: Any) -> list[Any]:
    """What its pretrain() is given as callbacks, before and after uninstall()."""
    module: Any = types.ModuleType("a_fork.training")
    module.pretrain = lambda callbacks=None: callbacks
    megatron.install(module, report=False)
    given = [type(callback).__name__ for callback in module.pretrain(callbacks=["theirs"])]
    megatron.uninstall()
    return [given, module.pretrain()]


def install_repeatedly(group: Any, variant: str, arguments: list[str], options: dict[str, Any]) -> list[bool]:
    """Uninstall without an installation, install twice, train twice, uninstall twice; was everything put back?"""
    training = importlib.import_module(f"megatron.training.{variant}")
    pretrain_tiny = importlib.import_module("pretrain_tiny")
    originals, sys.argv = dict(vars(training)), ["pretrain_tiny.py", *arguments]
    megatron.uninstall()
    restored = [vars(training) == originals]
    megatron.install(training, report=False, every=100)
    megatron.install(training, report=False, **options)
    for _ in range(2):
        pretrain_tiny.main(training.pretrain)
    for _ in range(2):
        megatron.uninstall()
        restored.append(vars(training) == originals)
    return restored


def pretrain_with_callback(group: Any, arguments: list[str], options: dict[str, Any]) -> None:
    """The same script, whose author passes the callback to pretrain."""
    training = importlib.import_module("megatron.training.with_callbacks")
    pretrain_tiny = importlib.import_module("pretrain_tiny")
    sys.argv = ["pretrain_tiny.py", *arguments]
    callback = megatron.AReaLMetricsCallback(report=False, **options)
    pretrain_tiny.main(functools.partial(training.pretrain, callbacks=[callback]))


def wait_for_data(group: Any, layout: dict[str, Any], seconds: float) -> dict[str, float]:
    """One step whose iterators keep the loop waiting; what the metrics say, and the whole of the step."""
    with parallel(Layout(**layout)), tempfile.TemporaryDirectory() as folder:
        training = build(Layout(**layout))

        def slow(iterator: Iterator[Any]) -> Iterator[Any]:
            for batch in iterator:
                time.sleep(seconds)
                yield batch

        iterators = training.iterators(batches(0, training.layout))
        slowed = [slow(part) for part in iterators] if isinstance(iterators, list) else slow(iterators)
        with megatron.attach(training.chunks, training.optimizer, output_dir=folder, report=False) as metrics:
            training.zero_gradients()
            began = time.perf_counter()
            with metrics.step():
                training.forward_backward(metrics.unmeasured(slowed))
                training.optimizer.step()
            whole = time.perf_counter() - began
            exported = metrics.export(1).metrics
        return {"whole": whole, **exported}


def train_on_the_first_rank_only(group: Any) -> dict[str, Any]:
    """One forward on rank 0, nothing on the others, and an export on all."""
    with parallel(Layout()), tempfile.TemporaryDirectory() as folder:
        training = build(Layout())
        with megatron.attach(training.chunks, output_dir=folder, report=False) as metrics:
            if dist.get_rank() == 0:
                with metrics.step():
                    forward_step(training.iterators(batches(0, training.layout)), training.chunks[0])
            return _plain(metrics.export(1))


def record_everywhere(group: Any, layout: dict[str, Any]) -> dict[str, float]:
    """Something recorded on every rank, with the groups given as a collection."""
    with parallel(Layout(**layout)), tempfile.TemporaryDirectory() as folder:
        training = build(Layout(**layout))
        groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "pp", "cp"])
        options = {"output_dir": folder, "report": False, "pg_collection": groups, "writer_rank": 0}
        with megatron.attach(training.chunks, training.optimizer, **options) as metrics:
            assert metrics.topology.is_writer == (dist.get_rank() == 0)
            mask = torch.ones(10, dtype=torch.bool)
            metrics.tracker.denominator(n_tokens=mask)
            metrics.tracker.stat(denominator="n_tokens", rank=torch.full((10,), float(dist.get_rank())))
            return metrics.export(1).metrics
