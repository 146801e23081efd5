"""Scalars, expert-load images and a Custom Scalars page for TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal_callbacks.config.options import MoEBalanceConfig
from areal_callbacks.config.trackers import TensorBoardConfig
from areal_callbacks.core.file_names import TENSORBOARD_FOLDER
from areal_callbacks.core.names import MAX_OVER_IDEAL, MOE_BALANCE
from areal_callbacks.writers.expert_images import draw_expert_loads
from areal_callbacks.writers.expert_rows import LoadsBetweenTables
from areal_callbacks.writers.scalars import as_plain_scalars
from areal_callbacks.writers.tracker_runs import HostRun

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run

_TRAIN_INFER = "ppo_actor/train_infer"
LAYOUT: dict[str, dict[str, list[Any]]] = {
    "Throughput": {
        "tokens per second": ["Multiline", [r"train_perf/(cumulative_)?tokens_per_second"]],
        "estimated FLOP/s": ["Multiline", [r"train_perf/(cumulative_)?estimated_flops_per_second"]],
    },
    "MoE balance": {
        "max over ideal, every layer": ["Multiline", [rf"{MOE_BALANCE}/(.+/)?layer_\d+/{MAX_OVER_IDEAL}"]],
        "max over ideal, all layers": ["Multiline", [rf"{MOE_BALANCE}/{MAX_OVER_IDEAL}_(max|mean)"]],
    },
    "Trainer and rollout": {
        f"{name} (average, extrema)": ["Margin", [f"{_TRAIN_INFER}/{name}/{part}" for part in ("avg", "min", "max")]]
        for name in ("logp_diff", "logp_abs_diff")
    },
}


class TensorBoardWriter:
    """Writes event files of our own, with one image of layer × expert loads per stack.

    Args:
        config: path None: ``tensorboard`` in the run's output folder.
        balance: exports from one image to the next, which shows the counts since.
    """

    def __init__(self, config: TensorBoardConfig, balance: MoEBalanceConfig) -> None:
        self._config = config
        self._images = _Images(balance)
        self._writer: Any = None

    def open(self, run: Run) -> None:
        """Open the event file, and write the Custom Scalars page."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(self._config.path or str(run.output_dir / TENSORBOARD_FOLDER))
        self._writer.add_custom_scalars(LAYOUT)

    def write(self, export: Export) -> None:
        """The host's scalars and ours, and an image per stack."""
        for key, value in as_plain_scalars({**export.host, **export.metrics}).items():
            self._writer.add_scalar(key, float(value), int(export.step), walltime=export.time or None)
        self._images.add(self._writer, export)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file; again does nothing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class TensorBoardGuest:
    """Adds the images and the Custom Scalars page to a host's event file, which the host closes.

    Args:
        host: finds the host's SummaryWriter.
        balance: exports from one image to the next, which shows the counts since.
    """

    def __init__(self, host: HostRun, balance: MoEBalanceConfig) -> None:
        self._host = host
        self._images = _Images(balance)
        self._writer: Any = None

    def open(self, run: Run) -> None:
        """Find the host's SummaryWriter; RuntimeError without one."""
        self._writer = self._host.open("SummaryWriter")
        self._writer.add_custom_scalars(LAYOUT)

    def write(self, export: Export) -> None:
        """An image per stack."""
        self._images.add(self._writer, export)

    def close(self) -> None:
        """Nothing to do."""


class _Images:
    def __init__(self, balance: MoEBalanceConfig) -> None:
        self._loads = LoadsBetweenTables(balance.expert_table_every)

    def add(self, summary_writer: Any, export: Export) -> None:
        """The images, if they are due."""
        for tag, image in draw_expert_loads(self._loads.add(export.expert_loads)).items():
            summary_writer.add_image(tag, image, int(export.step), walltime=export.time or None, dataformats="HWC")
