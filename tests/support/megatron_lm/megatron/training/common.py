"""What the variants of Megatron-LM's training loop share: arguments, writers, and the real work of an iteration.

The model, its schedule and its optimizer are megatron.core's (see tiny_megatron.py); only the loop around them, which
is not in the wheel, is written down here with Megatron-LM's names, signatures and order of calls.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.rerun_state_machine import RerunDataIterator
from support.readback import offline_environment
from support.tiny_megatron import LENGTH, MICRO_BATCHES, ROWS, Layout, batches

_GLOBAL: dict[str, Any] = {}


def get_args() -> Any:
    return _GLOBAL["args"]


def get_tensorboard_writer() -> Any:
    return _GLOBAL.get("tensorboard")


def get_wandb_writer() -> Any:
    return _GLOBAL.get("wandb")


def record() -> dict[str, Any]:
    """What the loop saw: seconds in train_step, seconds waiting for data, learning of the script's end."""
    return _GLOBAL["record"]


def initialize_megatron() -> None:
    """Parse the command line, join the other ranks, open the writers on the last one."""
    parser = argparse.ArgumentParser()
    for name, default in {"pipeline-model-parallel-size": 1, "train-iters": 6, "log-interval": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("save-interval", "raise-at", "infinite-at", "exit-at"):
        parser.add_argument(f"--{name}", type=int, default=0)
    for name in ("save", "load", "tensorboard-dir", "wandb-exp-name"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--batch-seconds", type=float, default=0.0)
    args = parser.parse_args(sys.argv[1:])
    _GLOBAL.clear()
    _GLOBAL.update(args=args, record={"step_seconds": 0.0, "waited": 0.0, "evaluated": 0})
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    args.layout = Layout(
        pp=args.pipeline_model_parallel_size,
        distributed_optimizer=bool(args.infinite_at),
        optimizer={"loss_scale": 1.0} if args.infinite_at else {},
    )
    args.iteration = 0
    if args.load:
        args.iteration = int(Path(args.load, "latest_checkpointed_iteration.txt").read_text())
    if dist.get_rank() == dist.get_world_size() - 1:
        _open_writers(args)


def _open_writers(args: Any) -> None:
    if args.tensorboard_dir:
        from torch.utils.tensorboard import SummaryWriter

        _GLOBAL["tensorboard"] = SummaryWriter(args.tensorboard_dir, max_queue=1)
    if args.wandb_exp_name:
        os.environ.update(offline_environment(Path(args.save)))
        import wandb

        wandb.init(mode="offline", name=args.wandb_exp_name, dir=args.save)
        _GLOBAL["wandb"] = wandb


def close_writers() -> None:
    if get_tensorboard_writer() is not None:
        get_tensorboard_writer().close()
    if get_wandb_writer() is not None:
        get_wandb_writer().finish()


def build_data_iterator() -> RerunDataIterator:
    """Batches from where training stands; every one keeps the loop waiting for a while."""
    args = get_args()

    def endless() -> Any:
        iteration = args.iteration
        while True:
            for batch in batches(iteration, args.layout):
                time.sleep(args.batch_seconds)
                record()["waited"] += args.batch_seconds
                yield batch
            iteration += 1

    return RerunDataIterator(endless())


def real_train_step(
    forward_backward_func: Callable[..., Any],
    forward_step_func: Callable[..., Any],
    data_iterator: Any,
    model: list[Any],
    optimizer: Any,
) -> tuple[Any, ...]:
    """Forward, backward and optimizer of one iteration, as Megatron-LM does them."""
    began = time.perf_counter()
    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    losses = forward_backward_func(
        forward_step_func=forward_step_func,
        data_iterator=data_iterator,
        model=model[0],
        num_microbatches=MICRO_BATCHES,
        seq_length=LENGTH,
        micro_batch_size=ROWS,
        forward_only=False,
    )
    data_iterator.advance()
    update_successful, grad_norm, num_zeros_in_grad = optimizer.step()
    record()["step_seconds"] += time.perf_counter() - began
    loss = {"lm loss": torch.stack([part["lm loss"] for part in losses]).mean()} if losses else {}
    return loss, 0 if update_successful else 1, False, False, 0, grad_norm, num_zeros_in_grad


def real_log(iteration: int, loss_dict: dict[str, Any]) -> None:
    """Megatron-LM's own scalars."""
    if iteration % get_args().log_interval == 0 and loss_dict:
        if get_tensorboard_writer() is not None:
            get_tensorboard_writer().add_scalar("lm loss", loss_dict["lm loss"], iteration)
        if get_wandb_writer() is not None:
            get_wandb_writer().log({"lm loss": float(loss_dict["lm loss"])}, iteration)


def evaluate(
    forward_backward_func: Callable[..., Any], forward_step_func: Callable[..., Any], model: list[Any]
) -> None:
    """One evaluation pass over the training iterator's shapes; must not count."""
    record()["evaluated"] += 1
    for chunk in model:
        chunk.eval()
    with torch.no_grad():
        forward_backward_func(
            forward_step_func=forward_step_func,
            data_iterator=RerunDataIterator(iter(batches(10_000, get_args().layout))),
            model=model[0],
            num_microbatches=MICRO_BATCHES,
            seq_length=LENGTH,
            micro_batch_size=ROWS,
            forward_only=True,
        )
    for chunk in model:
        chunk.train()


def write_checkpoint(iteration: int) -> None:
    if dist.get_rank() == 0:
        Path(get_args().save).mkdir(parents=True, exist_ok=True)
        Path(get_args().save, "latest_checkpointed_iteration.txt").write_text(str(iteration))
    dist.barrier()


def provoke(iteration: int) -> None:
    """The accident that the command line asks for."""
    if iteration == get_args().raise_at:
        raise FloatingPointError(f"iteration {iteration}")
