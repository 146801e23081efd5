"""Megatron-LM's training loop of 2026: signatures and order of calls; the work is in common.py."""

from __future__ import annotations

import sys
from typing import Any

from megatron.core.pipeline_parallel import get_forward_backward_func

from .common import (
    build_data_iterator,
    close_writers,
    evaluate,
    get_args,
    get_tensorboard_writer,
    get_wandb_writer,
    initialize_megatron,
    provoke,
    real_log,
    real_train_step,
    write_checkpoint,
)

__all__ = ["get_tensorboard_writer", "get_wandb_writer", "pretrain"]


def pretrain(
    train_valid_test_dataset_provider: Any,
    model_provider: Any,
    model_type: Any,
    forward_step_func: Any,
    process_non_loss_data_func: Any = None,
    extra_args_provider: Any = None,
    args_defaults: Any = None,
) -> None:
    initialize_megatron()
    args = get_args()
    model, optimizer, opt_param_scheduler = setup_model_and_optimizer(model_provider, model_type)
    iteration = args.iteration
    if args.train_iters > iteration:
        iteration, _ = train(
            forward_step_func,
            model,
            optimizer,
            opt_param_scheduler,
            build_data_iterator(),
            None,
            None,
            None,
            None,
            None,
        )
    if args.save and iteration != 0 and (not args.save_interval or iteration % args.save_interval != 0):
        save_checkpoint(iteration, model, optimizer, opt_param_scheduler, 0)
    close_writers()


def setup_model_and_optimizer(
    model_provider_func: Any,
    model_type: Any,
    no_wd_decay_cond: Any = None,
    scale_lr_cond: Any = None,
    lr_mult: float = 1.0,
    checkpointing_context: Any = None,
) -> tuple[Any, Any, Any]:
    model, optimizer = model_provider_func(get_args().layout)
    return model, optimizer, None


def train(
    forward_step_func: Any,
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    train_data_iterator: Any,
    valid_data_iterator: Any,
    process_non_loss_data_func: Any,
    config: Any,
    checkpointing_context: Any,
    non_loss_data_func: Any,
) -> tuple[int, int]:
    args = get_args()
    iteration = args.iteration
    for chunk in model:
        chunk.train()
    forward_backward_func = get_forward_backward_func()
    while iteration < args.train_iters:
        loss_dict, skipped_iter, _, _, _, grad_norm, num_zeros_in_grad = train_step(
            forward_step_func,
            train_data_iterator,
            model,
            optimizer,
            opt_param_scheduler,
            config,
            forward_backward_func,
            iteration=iteration,
        )
        iteration += 1
        training_log(
            loss_dict, {}, 1e-3, iteration, 1.0, False, skipped_iter, grad_norm, None, num_zeros_in_grad, None,
            pg_collection=None, is_first_iteration=iteration == 1,
        )  # fmt: skip
        if iteration % args.log_interval == 0:
            evaluate(forward_backward_func, forward_step_func, model)
        if checkpoint_and_decide_exit(model, optimizer, opt_param_scheduler, iteration, 0, checkpointing_context, None):
            close_writers()
            sys.exit(0)
    return iteration, 0


def checkpoint_and_decide_exit(
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    iteration: int,
    num_floating_point_operations_so_far: int,
    checkpointing_context: Any,
    train_data_iterator: Any,
) -> bool:
    args = get_args()
    if args.save and args.save_interval and iteration % args.save_interval == 0:
        save_checkpoint(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far)
    return bool(iteration == args.exit_at)


def train_step(
    forward_step_func: Any,
    data_iterator: Any,
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    config: Any,
    forward_backward_func: Any,
    iteration: int | None = None,
    pg_collection: Any = None,
    p2p_communicator: Any = None,
) -> tuple[Any, ...]:
    assert iteration is not None
    provoke(iteration + 1)
    return real_train_step(forward_backward_func, forward_step_func, data_iterator, model, optimizer)


def training_log(
    loss_dict: Any,
    total_loss_dict: Any,
    learning_rate: Any,
    iteration: int,
    loss_scale: Any,
    report_memory_flag: Any,
    skipped_iter: int,
    grad_norm: Any,
    params_norm: Any,
    num_zeros_in_grad: Any,
    max_attention_logit: Any,
    pg_collection: Any = None,
    is_first_iteration: bool = False,
    seqlen_squared_sum_in_batch: Any = None,
    total_real_tokens_in_batch: Any = None,
) -> bool:
    real_log(iteration, loss_dict)
    return False


def save_checkpoint(
    iteration: int,
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: int,
    checkpointing_context: Any = None,
) -> None:
    write_checkpoint(iteration)
