"""A tiny GPTModel of megatron.core in any parallel layout, with its data; on a CPU after ``pretend_cuda()``.

pretend_cuda()                     # megatron_cpu.py
dist.init_process_group("gloo")
with parallel(layout):
    training = build(layout)
    training.zero_gradients()
    training.forward_backward(training.iterators(batches(0, layout)))
    training.optimizer.step()
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from support.distributed import destroy_groups, list_groups
from torch import Tensor, nn

EXPERTS, TOP_K, VOCABULARY, LENGTH, ROWS, MICRO_BATCHES = 8, 2, 64, 16, 2, 4


@dataclass(frozen=True)
class Layout:
    """How a model is spread over processes, and what it is made of.

    Attributes:
        tp, pp, vpp, cp, ep, etp: sizes of the parallel dimensions; ``vpp`` counts model chunks per pipeline stage.
        layers: decoder layers.
        mtp: multi-token-prediction layers.
        distributed_optimizer: shard the optimizer's states over data-parallel ranks.
        model: further fields of the TransformerConfig.
        optimizer: further fields of the OptimizerConfig.
    """

    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    layers: int = 4
    mtp: int | None = None
    distributed_optimizer: bool = False
    model: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def parallel(layout: Layout) -> Iterator[None]:
    """Megatron's process groups for a layout, destroyed afterwards: layouts of one world size follow each other."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    gc.collect()  # models of an earlier layout are in cycles, and hold its groups and their threads
    before = list_groups()
    parallel_state.initialize_model_parallel(
        layout.tp,
        layout.pp,
        layout.vpp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
    )
    try:
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        torch.manual_seed(1)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        destroy_groups(kept=before)
        moe_utils.get_moe_layer_wise_logging_tracker().clear()  # sized for the layers of the last model
        MTPLossLoggingHelper.tracker.clear()


@dataclass
class Training:
    """A model and its optimizer, driven by Megatron's own schedule.

    Attributes:
        chunks: the model, one part per virtual pipeline stage, each wrapped in Megatron's DistributedDataParallel.
        optimizer: a MegatronOptimizer.
        config: the TransformerConfig.
    """

    layout: Layout
    chunks: list[Any]
    optimizer: Any
    config: Any

    def forward_backward(self, data: Any, *, forward_only: bool = False, step: Any = None) -> list[Any]:
        """All micro-batches of a step; ``data`` is an iterator over micro-batches, or one for each chunk."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        losses: list[Any] = get_forward_backward_func()(
            forward_step_func=step or forward_step,
            data_iterator=data,
            model=self.chunks if self.layout.vpp else self.chunks[0],
            num_microbatches=MICRO_BATCHES,
            seq_length=LENGTH,
            micro_batch_size=ROWS,
            forward_only=forward_only,
        )
        return losses

    def zero_gradients(self) -> None:
        """What Megatron does before every step."""
        for chunk in self.chunks:
            chunk.train()
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def iterators(self, batches: Sequence[Tensor]) -> Any:
        """Micro-batches as Megatron wants them: an iterator, or one for each chunk."""
        return [iter(batches) for _ in self.chunks] if self.layout.vpp else iter(batches)


def forward_step(iterator: Iterator[Tensor], model: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """One micro-batch, as Megatron's schedules ask for it: the output, and the loss of an output."""
    tokens = next(iterator)
    width = tokens.shape[1]
    mask = torch.ones(1, 1, width, width).triu(1).bool()
    positions, losses = torch.arange(width).expand_as(tokens), torch.ones(tokens.shape)
    output = model(tokens, positions, mask, labels=tokens.roll(-1, 1), loss_mask=losses)
    return output, lambda output: (output.mean(), {"lm loss": output.detach().mean()})


def build(layout: Layout) -> Training:
    """A tiny GPT with mixture-of-experts layers, inside :func:`parallel`."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = transformer_config(layout)
    config.finalize_model_grads_func = finalize_model_grads
    wrapping = DistributedDataParallelConfig(use_distributed_optimizer=layout.distributed_optimizer)
    stages = range(layout.vpp) if layout.vpp else [None]
    chunks = [DistributedDataParallel(config, wrapping, _model(layout, config, stage)) for stage in stages]
    options = {"optimizer": "adam", "lr": 1e-3, "clip_grad": 0.0, **layout.optimizer}
    settings = OptimizerConfig(use_distributed_optimizer=layout.distributed_optimizer, **options)
    return Training(layout, chunks, get_megatron_optimizer(settings, chunks), config)


def transformer_config(layout: Layout) -> Any:
    """The TransformerConfig of a layout, with every fused kernel off."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    fields = {
        "num_layers": layout.layers,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "ffn_hidden_size": 64,
        "moe_ffn_hidden_size": 64,
        "num_moe_experts": EXPERTS,
        "moe_router_topk": TOP_K,
        "moe_aux_loss_coeff": 1e-2,
        "moe_token_dispatcher_type": "alltoall",
        "mtp_num_layers": layout.mtp,
        "mtp_loss_scaling_factor": 0.1,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "sequence_parallel": layout.tp > 1,
        "pipeline_dtype": torch.float32,
        # As Megatron-LM demands of virtual stages: else two pipeline ranks take each other's activations for gradients.
        "overlap_p2p_comm": layout.vpp is not None,
        "batch_p2p_comm": layout.vpp is None,
        "use_cpu_initialization": True,
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "cuda_graph_scope": [],
        "gradient_accumulation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "apply_rope_fusion": False,
    }
    return TransformerConfig(**{**fields, **layout.model})


def _model(layout: Layout, config: Any, stage: int | None) -> nn.Module:
    import megatron.core.models.gpt.gpt_layer_specs as specs
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel

    experts = config.num_moe_experts
    mtp = None
    if layout.mtp:
        layer = specs.get_gpt_layer_local_spec(experts)
        mtp = specs.get_gpt_mtp_block_spec(config, layer, use_transformer_engine=False, vp_stage=stage)
    model: nn.Module = GPTModel(
        config,
        specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=stage),
        VOCABULARY,
        LENGTH,
        position_embedding_type="rope",
        vp_stage=stage,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        mtp_block_spec=mtp,
    )
    return model


def batches(step: int, layout: Layout, *, seed: int = 0) -> list[Tensor]:
    """This rank's micro-batches of a step: equal on ranks of one data-parallel replica, cut by context parallelism."""
    from megatron.core import parallel_state

    replica = parallel_state.get_data_parallel_rank()
    generator = torch.Generator().manual_seed(seed + 1000 * step + replica)
    rows = [torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator) for _ in range(MICRO_BATCHES)]
    width = LENGTH // layout.cp
    rank = parallel_state.get_context_parallel_rank()
    return [row[:, rank * width : (rank + 1) * width].contiguous() for row in rows]
