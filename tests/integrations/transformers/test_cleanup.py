"""However a training ends, the model, the Trainer and its callbacks are left as they were."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_trainer import (
    RecordingTrainer,
    Recount,
    make_trainer,
    mask_lengths,
    moe_model,
    our_rows,
    router_modules,
    total_loads,
)
from support.wraps import find_wraps
from torch import nn
from transformers import Trainer, TrainerCallback
from transformers.integrations import integration_utils

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

REWRITE_LOGS = integration_utils.rewrite_logs
HOOKS = [name for name in vars(nn.Linear(1, 1)) if name.endswith("_hooks")] + [
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
]


def footprint(trainer: Trainer) -> dict[str, Any]:
    """Everything that a measurement hangs on, as it is now."""
    hooks = {
        f"{name}.{kind}": list(getattr(module, kind))
        for name, module in trainer.model.named_modules()
        for kind in HOOKS
        if getattr(module, kind)
    }
    owners = [trainer, trainer.callback_handler, *trainer.callback_handler.callbacks, *trainer.model.modules()]
    shadowed = [(type(owner).__name__, name) for owner in owners for name in vars(owner) if _is_method(owner, name)]
    shadowed += sorted({(type(owner).__name__, name) for owner in owners for name in find_wraps(owner)})
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    steps = [] if optimizer is None else [*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks]
    return {"hooks": hooks, "shadowed": shadowed, "steps": steps, "rewrite_logs": integration_utils.rewrite_logs}


def _is_method(owner: Any, name: str) -> bool:
    return callable(vars(owner)[name]) and callable(getattr(type(owner), name, None))


CLEAN = {"hooks": {}, "shadowed": [], "steps": [], "rewrite_logs": REWRITE_LOGS}


class Raises(TrainerCallback):
    """After ours; raises at one event, and has seen ours at work before."""

    def __init__(self, event: str, error: type[BaseException], at: int = 2) -> None:
        self.seen: list[dict[str, Any]] = []
        self.trainer: Trainer | None = None
        self._error, self._at = error, at
        self.calls = 0
        setattr(self, event, self._raise)

    def _raise(self, *args: Any, **kwargs: Any) -> None:
        assert self.trainer is not None
        self.seen.append(footprint(self.trainer))
        self.calls += 1
        if self.calls >= self._at:
            raise self._error("from a callback")


def shadows(trainer: Trainer) -> dict[str, Any]:
    """The callback of these tests has an event of its own on the instance."""
    found = footprint(trainer)
    return found | {"shadowed": [entry for entry in found["shadowed"] if entry[0] != "Raises"]}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("event", "at"),
    [
        ("on_train_begin", 1),
        ("on_epoch_begin", 1),
        ("on_epoch_begin", 2),
        ("on_step_begin", 3),
        ("on_step_end", 2),
        ("on_log", 2),
        ("on_prediction_step", 1),
        ("on_evaluate", 1),
        ("on_save", 1),
        ("on_train_end", 1),
    ],
)
def test_after_an_exception_in_a_callback(event: str, at: int, error: type[BaseException], tmp_path: Path) -> None:
    raises = Raises(event, error, at)
    trainer = make_trainer(
        tmp_path,
        callbacks=[AReaLMetricsCallback(report=False), raises],
        num_train_epochs=2,
        eval_strategy="epoch",
        save_strategy="epoch",
    )
    raises.trainer = trainer
    with pytest.raises(error, match="from a callback"):
        trainer.train()
    assert raises.seen[0]["hooks"] or event == "on_train_end"  # ours had been at work
    assert shadows(trainer) == CLEAN


class Breaks(RecordingTrainer):
    """Raises in the second training step, in the model or around it, as often as asked."""

    failure: BaseException = RuntimeError("in the loss")
    inside = False
    times = 1

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if len(self.batches) == 4 and self.times:
            self.times -= 1
            self.seen = footprint(self)
            if not self.inside:
                raise self.failure
            router = router_modules(model)[1]
            handle = router.register_forward_pre_hook(self._raise)
            try:
                return super().compute_loss(model, inputs, *args, **kwargs)
            finally:
                handle.remove()
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _raise(self, *args: Any) -> None:
        raise self.failure


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("inside", [True, False])
def test_after_an_exception_in_the_step_and_the_next_training_is_right(
    inside: bool, error: type[BaseException], tmp_path: Path
) -> None:
    model = moe_model()
    trainer = make_trainer(tmp_path, model=model, callbacks=[AReaLMetricsCallback()], kind=Breaks, interleave=True)
    trainer.failure, trainer.inside = error("in the loss"), inside
    before = footprint(trainer)
    with pytest.raises(error, match="in the loss"):
        trainer.train()
    assert trainer.seen["hooks"]
    assert trainer.seen["rewrite_logs"] is not REWRITE_LOGS
    assert footprint(trainer) == before == CLEAN
    trainer.batches.clear()
    recount = Recount(model)
    written = total_loads(tmp_path)
    trainer.train()
    recount.remove()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches))
    assert (total_loads(tmp_path) - written == recount.counts).all()
    assert footprint(trainer) == CLEAN


def test_after_a_training_and_while_it_runs(tmp_path: Path) -> None:
    raises = Raises("on_step_end", RuntimeError, at=99)
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(), raises])
    raises.trainer = trainer
    trainer.train()
    running = raises.seen[0]
    assert running["hooks"].keys() >= {
        "._forward_pre_hooks",
        "._forward_hooks",
        "model.layers.1.mlp.gate._forward_hooks",
    }
    assert ("RecordingTrainer", "_run_epoch") in running["shadowed"]
    assert len(running["steps"]) == 2
    assert shadows(trainer) == CLEAN


def test_after_an_evaluation_before_training_that_cannot_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(evaluate_before_train=True)])
    trainer.eval_dataset = None
    with pytest.raises(ValueError, match="eval_dataset"):
        trainer.train()
    assert footprint(trainer) == CLEAN


def test_a_smaller_batch_size_after_running_out_of_memory(tmp_path: Path) -> None:
    """The Trainer starts over inside one ``train()``; what the failed attempt measured is not part of the totals."""
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback()], kind=Breaks, auto_find_batch_size=True)
    trainer.failure = RuntimeError("CUDA out of memory. Tried to allocate")
    trainer.train()
    batches = trainer.batches[4:]
    assert {len(batch["input_ids"]) for batch in batches} == {1}
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(batches))
    assert footprint(trainer) == CLEAN


class RemovesOurs(TrainerCallback):
    def __init__(self) -> None:
        self.trainer: Trainer | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and self.trainer is not None:
            self.trainer.remove_callback(AReaLMetricsCallback)


def test_a_callback_removed_during_training(tmp_path: Path) -> None:
    remover = RemovesOurs()
    trainer = make_trainer(tmp_path, callbacks=[AReaLMetricsCallback(), remover])
    remover.trainer = trainer
    trainer.train()
    assert footprint(trainer) == CLEAN


class Copies(TrainerCallback):
    """Deep-copies and saves the model while it is measured, and trains the copy a little."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.copy = copy.deepcopy(model)
        torch.save(model, file := io.BytesIO())
        file.seek(0)
        self.loaded = torch.load(file, weights_only=False)
        for twin in (self.copy, self.loaded):
            ids = torch.ones(1, 5, dtype=torch.long)
            twin.train()
            twin(input_ids=ids, labels=ids).loss.backward()


def test_copies_of_the_model_are_not_measured(tmp_path: Path) -> None:
    model = moe_model()
    recount = Recount(model)
    trainer = make_trainer(tmp_path, model=model, callbacks=[AReaLMetricsCallback(), Copies()])
    recount.remove()
    trainer.train()
    assert our_rows(trainer)[-1]["train_perf/total_tokens"] == sum(mask_lengths(trainer.batches))
    assert total_loads(tmp_path).sum() == sum(batch["input_ids"].numel() for batch in trainer.batches) * 2 * 2
