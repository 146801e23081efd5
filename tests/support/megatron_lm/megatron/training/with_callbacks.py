"""A loop that takes callbacks, with the events and the context of Megatron-Bridge."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from megatron.core.pipeline_parallel import get_forward_backward_func

from .common import (
    build_data_iterator,
    close_writers,
    get_args,
    get_tensorboard_writer,
    get_wandb_writer,
    initialize_megatron,
    provoke,
    real_log,
    real_train_step,
)

EVENTS = ("on_train_start", "on_train_step_start", "on_train_step_end", "on_train_end", "on_eval_start", "on_eval_end")


@dataclass
class CallbackContext:
    state: Any
    model: Any
    optimizer: Any
    loss_dict: Any = None
    grad_norm: Any = None
    skipped_iter: int = 0


def pretrain(
    train_valid_test_dataset_provider: Any,
    model_provider: Any,
    model_type: Any,
    forward_step_func: Any,
    callbacks: list[Any] | None = None,
) -> None:
    initialize_megatron()
    args = get_args()
    model, optimizer = model_provider(args.layout)
    data_iterator = build_data_iterator()
    handlers = {event: [getattr(callback, event) for callback in callbacks or ()] for event in EVENTS}
    context = CallbackContext(_state(args), model, optimizer)

    def fire(event: str) -> None:
        for handler in handlers[event]:
            handler(context)

    fire("on_train_start")
    while context.state.train_state.step < args.train_iters:
        fire("on_train_step_start")
        provoke(context.state.train_state.step + 1)
        done = real_train_step(get_forward_backward_func(), forward_step_func, data_iterator, model, optimizer)
        context.loss_dict, context.skipped_iter, context.grad_norm = done[0], done[1], done[5]
        fire("on_train_step_end")
        context.state.train_state.step += 1
        real_log(context.state.train_state.step, context.loss_dict)
    fire("on_train_end")
    close_writers()


def _state(args: Any) -> Any:
    return SimpleNamespace(
        train_state=SimpleNamespace(step=args.iteration),
        cfg=SimpleNamespace(
            logger=SimpleNamespace(log_interval=args.log_interval, wandb_exp_name=args.wandb_exp_name),
            checkpoint=SimpleNamespace(save=args.save, load=args.load),
        ),
        tensorboard_logger=get_tensorboard_writer(),
        wandb_logger=get_wandb_writer(),
    )
