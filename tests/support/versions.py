"""What the oldest supported versions cannot do: marks that say so."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import distribute_tensor


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function of this version has a parameter of that name."""
    return name in inspect.signature(function).parameters


def _has_sequence_parallelism() -> bool:
    try:
        from accelerate.parallelism_config import ParallelismConfig
    except ImportError:
        return False
    return takes(ParallelismConfig, "sp_size")


needs_fsdp2_on_cpu = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason=f"torch {torch.__version__} has no FSDP2 on CPUs"
)
needs_reduce_scatter = pytest.mark.skipif(
    torch.__version__ < "2.7", reason=f"torch {torch.__version__} cannot reduce_scatter over gloo"
)
needs_pipelining_of_views = pytest.mark.skipif(
    torch.__version__ < "2.7", reason=f"torch {torch.__version__} cannot pipeline stages that put out views"
)
needs_tensor_parallel_loading = pytest.mark.skipif(
    not takes(distribute_tensor, "src_data_rank"),
    reason=f"transformers' tensor parallelism needs a newer torch than {torch.__version__}",
)
needs_sequence_parallelism = pytest.mark.skipif(
    not _has_sequence_parallelism(), reason="this Accelerate has no sequence parallelism"
)
