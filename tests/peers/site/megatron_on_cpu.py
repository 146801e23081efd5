"""A pytest plugin for Megatron-LM's own tests on a machine without a GPU: one rank over gloo."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

sys.path.append(str(Path(__file__).resolve().parents[2]))

from support.megatron_cpu import pretend_cuda


def _join_by_gloo() -> None:
    """The tests ask for NCCL and name their device."""
    distributed: Any = torch.distributed
    init, barrier = distributed.init_process_group, distributed.barrier
    distributed.init_process_group = lambda backend=None, *args, **options: init("gloo", *args, **options)
    distributed.barrier = lambda *args, device_ids=None, **options: barrier(*args, **options)
    with socket.socket() as free:
        free.bind(("", 0))
        os.environ.setdefault("MASTER_PORT", str(free.getsockname()[1]))


def _answer_for_one_device() -> None:
    """Also that there is no Transformer Engine, whose version the tests compare while they are collected."""
    import megatron.core.utils as utils

    utils.get_te_version = lambda: Version("0")
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda device: None


pretend_cuda()
_join_by_gloo()
_answer_for_one_device()
