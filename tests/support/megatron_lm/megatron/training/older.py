"""The same loop with the signatures of older releases: fewer arguments, one more in training_log."""

from __future__ import annotations

from typing import Any

from megatron.core.pipeline_parallel import get_forward_backward_func

from .common import (
    build_data_iterator,
    close_writers,
    get_args,
    get_tensorboard_writer,
    get_wandb_writer,
    initialize_megatron,
    real_log,
    real_train_step,
)

__all__ = ["get_tensorboard_writer", "get_wandb_writer", "pretrain"]


def pretrain(
    train_valid_test_dataset_provider: Any, model_provider: Any, model_type: Any, forward_step_func: Any
) -> None:
    initialize_megatron()
    model, optimizer, scheduler = setup_model_and_optimizer(model_provider, model_type)
    train(forward_step_func, model, optimizer, scheduler, build_data_iterator(), None, None, None)
    close_writers()


def setup_model_and_optimizer(model_provider_func: Any, model_type: Any) -> tuple[Any, Any, Any]:
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
) -> int:
    iteration = get_args().iteration
    while iteration < get_args().train_iters:
        loss_dict, skipped_iter, grad_norm, num_zeros_in_grad = train_step(
            forward_step_func, train_data_iterator, model, optimizer, opt_param_scheduler, config
        )
        iteration += 1
        training_log(loss_dict, {}, 1e-3, None, iteration, 1.0, False, skipped_iter, grad_norm, None, num_zeros_in_grad)
    return iteration


def train_step(
    forward_step_func: Any, data_iterator: Any, model: Any, optimizer: Any, opt_param_scheduler: Any, config: Any
) -> tuple[Any, ...]:
    done = real_train_step(get_forward_backward_func(), forward_step_func, data_iterator, model, optimizer)
    return done[0], done[1], done[5], done[6]


def training_log(
    loss_dict: Any,
    total_loss_dict: Any,
    learning_rate: Any,
    decoupled_learning_rate: Any,
    iteration: int,
    loss_scale: Any,
    report_memory_flag: Any,
    skipped_iter: int,
    grad_norm: Any,
    params_norm: Any,
    num_zeros_in_grad: Any,
) -> bool:
    real_log(iteration, loss_dict)
    return False
