"""What our code does during a step (no wait, no collective) and what it does to the training (nothing)."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.distributed import Ranks
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import areal_callbacks

PACKAGE = Path(areal_callbacks.__file__).resolve().parent
INTEGRATIONS = PACKAGE.parent / "integrations"
TORCH = Path(torch.__file__).resolve().parent
# numpy() waits for nothing: it raises for what lies on a device
WAITS = ("item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero")


def called_by_us() -> bool:
    """Whether the innermost frame outside of torch and this file is in the package."""
    frame = sys._getframe(1)
    while frame is not None and (owner := owner_of(frame.f_code.co_filename)) == "passes":
        frame = frame.f_back
    return frame is not None and owner == "us"


@functools.cache
def owner_of(file: str) -> str:
    path = Path(file)
    if path == Path(__file__) or TORCH in path.parents:
        return "passes"
    return "us" if {PACKAGE, INTEGRATIONS} & set(path.resolve().parents) else "others"


class Watch(TorchDispatchMode):
    """Lists what our code asked of the device's values and of the process group, with the step it happened in."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[int, str]] = []
        self.collectives: list[tuple[int, str]] = []
        self.step = 0
        self.thread = threading.get_ident()  # writers read counts on threads of their own

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and called_by_us():
            self.collectives.append((self.step, func.name().removeprefix("c10d::")))
        if func.name() == "aten::_local_scalar_dense" and called_by_us():
            self.waits.append((self.step, func.name()))
        return func(*args, **(kwargs or {}))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        originals = {name: getattr(Tensor, name) for name in WAITS}

        def watched(name: str) -> Any:
            def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
                if threading.get_ident() == self.thread and called_by_us():
                    self.waits.append((self.step, name))
                return originals[name](tensor, *args, **kwargs)

            return call

        for name in WAITS:
            setattr(Tensor, name, watched(name))
        try:
            with self:
                yield
        finally:
            for name in WAITS:
                delattr(Tensor, name) if name not in originals else setattr(Tensor, name, originals[name])


def watched_training(folder: str, **options: Any) -> Watch:
    from support.tiny_trainer import make_trainer
    from transformers import TrainerCallback

    from areal_callbacks import stats_tracker
    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    class Steps(TrainerCallback):
        """In front of ours: every step records a statistic, the seventh a new one."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.step = state.global_step + 1
            mask = torch.tensor([True, False])
            with stats_tracker.scope("ppo_actor"):
                stats_tracker.denominator(valid=mask)
                stats_tracker.stat(loss=torch.tensor([1.0, 2.0]), denominator="valid")
            if watch.step == 7:
                stats_tracker.stat_compact(mask, **{f"new_in_{Path(folder).name}": torch.tensor([1.0, 2.0])})

    watch = Watch()
    trainer = make_trainer(
        folder,
        callbacks=[Steps(), AReaLMetricsCallback()],
        logging_steps=2,
        max_steps=8,
        num_train_epochs=4,
        eval_strategy="steps",
        eval_steps=3,
        **options,
    )
    with watch.waiting():
        trainer.train()
    return watch


def test_no_wait_between_exports(tmp_path: Path) -> None:
    watch = watched_training(str(tmp_path))
    assert {step for step, _ in watch.waits} == {2, 4, 6, 8}  # the logging events, where an export may wait
    assert not watch.collectives


def watched_rank(_group: Any, folder: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    watch = watched_training(folder)
    return watch.waits, watch.collectives


@pytest.mark.slow
def test_an_export_is_two_collectives_and_a_new_key_three_more(two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.run(watched_rank, str(tmp_path / "first"))  # agree on the keys
    for waits, collectives in two_ranks.run(watched_rank, str(tmp_path / "second")):
        by_step = {step: [name for at, name in collectives if at == step] for step in range(1, 9)}
        assert by_step == {
            **{step: [] for step in (1, 3, 5, 7)},
            **{step: ["allreduce_"] * 2 for step in (2, 4, 6)},
            8: ["allreduce_"] * (2 + 3 + 2 + 2),  # and twice more at the end: the tail, what later callbacks record
        }
        assert {step for step, _ in waits} <= {2, 4, 6, 8}


def trained(folder: str, measured: bool) -> tuple[dict[str, Tensor], list[float]]:
    from support.tiny_trainer import make_trainer, moe_model

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    trainer = make_trainer(
        folder,
        model=moe_model(attention_dropout=0.2, attention="eager"),
        callbacks=[AReaLMetricsCallback()] if measured else [],
        num_train_epochs=2,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=3,
    )
    trainer.train()
    losses = [
        value
        for row in trainer.state.log_history
        for name, value in row.items()
        if name in ("loss", "eval_loss", "grad_norm")
    ]
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}, losses


def differences(folder: str) -> tuple[list[str], bool, int]:
    with_ours, losses = trained(f"{folder}/with", measured=True)
    without, other_losses = trained(f"{folder}/without", measured=False)
    changed = [name for name, tensor in with_ours.items() if not torch.equal(tensor, without[name])]
    return changed, losses == other_losses, len(losses)


def test_training_is_bit_identical(tmp_path: Path) -> None:
    assert differences(str(tmp_path)) == ([], True, 8 * 2 + 4)


def rank_differences(_group: Any, folder: str) -> tuple[list[str], bool, int]:
    return differences(folder)


@pytest.mark.slow
def test_training_of_two_ranks_is_bit_identical(two_ranks: Ranks, tmp_path: Path) -> None:
    assert two_ranks.run(rank_differences, str(tmp_path)) == [([], True, 4 * 2 + 2)] * 2
