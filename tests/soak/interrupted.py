"""One life of a training that may be ended by a signal: ``python -m soak.interrupted HOST FOLDER STEPS [plain]``.

It goes on from the last complete checkpoint in the folder. ``begun`` in the folder says that the first step comes next,
``weights.pt`` is written after the last one, and of a training without us the tokens of each step. At SIGUSR1 it saves
and leaves, as schedulers of jobs want it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

EVERY, SAVES = 2, 10
_asked: list[int] = []
_tokens: list[int] = []


def loop(folder: Path, steps: int, *, measure: bool) -> torch.nn.Module:
    """A loop of one's own, whose checkpoint holds our totals; it appears at once or not at all."""
    from support.toy_moe import ToyMoE

    from areal_callbacks.integrations.fsdp import track

    model, done = ToyMoE((6,)), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    metrics = track(model, optimizer, output_dir=folder, report=False, resume_totals=True) if measure else None
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
        if metrics is not None:
            metrics.load_state_dict(state["metrics"])
    (folder / "begun").touch()
    while done < steps and not _asked:
        if metrics is not None:
            metrics.begin()
        batch = make_batch(done)
        _tokens.append(batch.numel())
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if metrics is not None:
            metrics.end()
            if done % EVERY == 0 or _asked:
                metrics.export(done)
        if done % SAVES == 0 or _asked:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
            torch.save(state | {"metrics": metrics and metrics.state_dict()}, folder / "new.pt")
            os.replace(folder / "new.pt", checkpoint)
    if metrics is not None:
        metrics.close()
    return model


def make_batch(step: int) -> torch.Tensor:
    """Token ids; ragged over the steps."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 32, (2, 3 + step % 5), generator=generator)


def transformers(folder: Path, steps: int, *, measure: bool) -> torch.nn.Module:
    """A Hugging Face Trainer and its own checkpoints."""
    from support.tiny_trainer import Sequences, dense_model
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    class Counting(Trainer):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            _tokens.append(int(inputs["attention_mask"].sum()))
            loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
            return loss

    class Marks(TrainerCallback):
        """What the Trainer does not say: that a checkpoint is complete, and that it is to leave."""

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            (folder / "begun").touch()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if _asked:
                control.should_save = control.should_training_stop = True

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            (folder / f"checkpoint-{state.global_step}" / "complete").touch()

    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=2, max_steps=steps, logging_steps=EVERY, save_steps=SAVES,
        learning_rate=0.1, lr_scheduler_type="constant", optim="sgd", use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    ours = [AReaLMetricsCallback(output_dir=folder, report=False, resume_totals=True)] if measure else []
    trainer = Counting(dense_model(), arguments, train_dataset=Sequences(32), callbacks=[*ours, Marks()])
    complete = sorted(folder.glob("checkpoint-*/complete"), key=lambda mark: int(mark.parent.name.split("-")[1]))
    last = complete[-1].parent if complete else None
    if last is not None and last.name == f"checkpoint-{steps}":  # the Trainer would train one step more
        return type(trainer.model).from_pretrained(last)
    trainer.train(resume_from_checkpoint=last and str(last))
    return trainer.model


HOSTS: dict[str, Callable[..., torch.nn.Module]] = {"loop": loop, "transformers": transformers}


def main() -> None:
    """Exit code 0 after the last step, 75 if it was asked to leave before."""
    host, folder, steps, *plain = sys.argv[1:]
    signal.signal(signal.SIGUSR1, lambda number, _: _asked.append(number))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in a shell's background
    model = HOSTS[host](Path(folder), int(steps), measure=not plain)
    if _asked:
        sys.exit(75)
    if plain:
        Path(folder, "tokens.json").write_text(json.dumps(_tokens))
    torch.save(model.state_dict(), Path(folder, "weights.pt"))


if __name__ == "__main__":
    main()
