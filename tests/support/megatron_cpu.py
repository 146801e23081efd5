"""megatron.core on a CPU: what it takes to train its real GPTModel, mixture of experts included, over gloo.

megatron.core asks for CUDA in many places where nothing depends on it. :func:`pretend_cuda` answers those questions:
the current device is the CPU, streams and events do nothing, the generator state is the CPU's. Everything that model,
router, token dispatcher, pipeline schedule and optimizer compute is megatron.core's own code. Two parts differ from a
GPU: layer norms are torch's, and context parallelism attends to the local chunk only (ring attention needs Transformer
Engine), so that losses under it mean nothing while tokens and routing are real.

The changes last as long as the process: call it in processes of its own, never in a test session. tiny_megatron.py
builds what is trained then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class _Nothing:
    """A stream or an event: every method does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., _Nothing]:
        return lambda *args, **kwargs: self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Nothing)

    def __hash__(self) -> int:
        return 0


def pretend_cuda() -> None:
    """Make megatron.core train on the CPU in this process, from now on."""
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer  # noqa: F401 - complete before torch.cuda changes under it

    torch._dynamo.config.disable = True  # megatron.core compiles small functions, which costs more here than it saves
    _answer_for_the_device()
    _create_on_the_cpu()
    _replace_gpu_kernels()


def _answer_for_the_device() -> None:
    import megatron.core.tensor_parallel.random as generators

    def answer(value: Any) -> Callable[..., Any]:  # each a function of its own: torch.compile keeps a register of them
        return lambda *args, **kwargs: value

    cuda: Any = torch.cuda
    stream = _Nothing()
    cuda.Stream = cuda.Event = _Nothing
    cuda.current_device = answer(torch.device("cpu"))
    cuda.current_stream, cuda.default_stream = answer(stream), answer(stream)
    cuda.synchronize, cuda.empty_cache, cuda.manual_seed = answer(None), answer(None), answer(None)
    cuda.stream = lambda _: contextlib.nullcontext()
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    generators._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    generators._set_cuda_rng_state = answer(None)


def _create_on_the_cpu() -> None:
    def on_cpu(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def create(*args: Any, **kwargs: Any) -> Tensor:
            if "cuda" in str(kwargs.get("device", "")):
                kwargs["device"] = "cpu"
            kwargs.pop("pin_memory", None)
            return function(*args, **kwargs)

        return create

    for name in ("zeros", "ones", "empty", "full", "tensor", "arange"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    tensors: Any = torch.Tensor
    tensors.cuda = lambda tensor, *args, **kwargs: tensor
    plain_type = tensors.type

    def type_name(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The optimizers accept tensors whose type is called torch.cuda.…Tensor."""
        answer = plain_type(tensor, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.") if isinstance(answer, str) else answer

    tensors.type = type_name


def _replace_gpu_kernels() -> None:
    import megatron.core.models.backends as backends
    import megatron.core.models.gpt.gpt_layer_specs as specs
    import megatron.core.transformer.moe.moe_utils as moe
    import megatron.core.transformer.moe.token_dispatcher as dispatcher
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class SequenceParallelNorm(nn.LayerNorm):
        """torch's layer norm, marked for the gradient reduction of sequence parallelism."""

        def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> None:
            super().__init__(hidden_size, eps)
            parameter: Any
            for parameter in self.parameters():
                parameter.sequence_parallel = config.sequence_parallel

    backends.LNImpl = specs.LNImpl = SequenceParallelNorm
    moe.te_general_gemm = getattr(moe, "te_general_gemm", None)  # named in an annotation without Transformer Engine

    def to_host(tensor: Any, as_numpy: bool = False, **kwargs: Any) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    dispatcher.maybe_move_tensor_to_cpu = to_host
    whole = DotProductAttention.__init__

    def local_chunk(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        """It asserts that there is no context parallelism: let it take its part of the sequence for the whole."""
        size, config.context_parallel_size = config.context_parallel_size, 1
        whole(self, config, *args, **kwargs)
        config.context_parallel_size = size

    DotProductAttention.__init__ = local_chunk
