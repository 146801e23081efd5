"""Scalars, expert-load images and a ready-made Custom Scalars page for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_callbacks.writers.expert_images import expert_load_images
from areal_callbacks.writers.expert_tables import LoadsBetweenTables
from areal_callbacks.writers.scalars import plain_scalars

if TYPE_CHECKING:
    from areal_callbacks.core.types import Export, Run

_TRAIN_INFER = "ppo_actor/train_infer"
LAYOUT: dict[str, dict[str, list[Any]]] = {
    "Throughput": {
        "tokens per second": ["Multiline", [r"train_perf/(cumulative_)?tokens_per_second"]],
        "estimated FLOP/s": ["Multiline", [r"train_perf/(cumulative_)?estimated_flops_per_second"]],
    },
    "MoE balance": {
        "max over ideal, every layer": ["Multiline", [r"moe_balance/(.+/)?layer_\d+/max_over_ideal"]],
        "max over ideal, all layers": ["Multiline", [r"moe_balance/max_over_ideal_(max|mean)"]],
    },
    "Trainer and rollout": {
        f"{name} (average, extrema)": ["Margin", [f"{_TRAIN_INFER}/{name}/{part}" for part in ("avg", "min", "max")]]
        for name in ("logp_diff", "logp_abs_diff")
    },
}


class TensorBoardWriter:
    """Writes events with one image of layer × expert loads per stack; opens a SummaryWriter unless it is given one.

    Args:
        log_dir: folder of the event files; None: ``tensorboard`` in the run's output folder.
        summary_writer: the SummaryWriter of a host. It stays open at the end, and its host writes its own scalars.
        scalars: False if our scalars reach ``summary_writer`` by another way.
        layout: write the Custom Scalars page; False if the host has one, since TensorBoard shows one per run.
        table_every: exports from one image to the next, which shows the counts since.
    """

    def __init__(
        self,
        log_dir: str | Path | None = None,
        *,
        summary_writer: Any = None,
        scalars: bool = True,
        layout: bool = True,
        table_every: int = 1,
    ) -> None:
        self._log_dir = log_dir
        self._writer = summary_writer
        self._owner = summary_writer is None
        self._scalars = scalars
        self._layout = layout
        self._loads = LoadsBetweenTables(table_every)

    def open(self, run: Run) -> None:
        """Open the event file, and write the Custom Scalars page."""
        if self._owner:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._log_dir or run.output_dir / "tensorboard"))
        if self._layout:
            self._writer.add_custom_scalars(LAYOUT)

    def write(self, export: Export) -> None:
        """Scalars, those of the host if the event file is ours, and an image per stack."""
        scalars = {**(export.host if self._owner else {}), **(export.metrics if self._scalars else {})}
        step, time = int(export.step), export.time or None
        for key, value in plain_scalars(scalars).items():
            self._writer.add_scalar(key, float(value), step, walltime=time)
        for tag, image in expert_load_images(self._loads.add(export.expert_loads)).items():
            self._writer.add_image(tag, image, step, walltime=time, dataformats="HWC")
        if self._owner:
            self._writer.flush()

    def close(self) -> None:
        """Close the event file if it is ours."""
        if self._owner and self._writer is not None:
            self._writer.close()
            self._writer = None


class TensorBoardGuest:
    """Adds the expert-load images and the Custom Scalars page to a host's event file, whose scalars are the host's job.

    Args:
        summary_writer: returns the host's SummaryWriter, when the first export is written.
        table_every: exports from one image to the next, which shows the counts since.
    """

    def __init__(self, summary_writer: Callable[[], Any], *, table_every: int = 1) -> None:
        self._summary_writer = summary_writer
        self._table_every = table_every
        self._writer: TensorBoardWriter | None = None

    def open(self, run: Run) -> None:
        """Find the host's SummaryWriter; RuntimeError without one."""
        host = self._summary_writer()
        if host is None:
            raise RuntimeError("the host has no SummaryWriter")
        self._writer = TensorBoardWriter(summary_writer=host, scalars=False, table_every=self._table_every)
        self._writer.open(run)

    def write(self, export: Export) -> None:
        """An image per stack."""
        if self._writer is not None:
            self._writer.write(export)

    def close(self) -> None:
        """The event file stays open: it is the host's."""
