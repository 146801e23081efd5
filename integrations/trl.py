"""What TRL's trainers generate, reward and optimise, as policy diagnostics."""

from __future__ import annotations

from areal_callbacks.patches import Patches
from areal_callbacks.session import MetricsSession

try:
    from transformers import Trainer
except ImportError as error:
    raise ImportError("this integration needs TRL: pip install 'areal-callbacks[trl]'") from error


def observe(trainer: Trainer, session: MetricsSession, patches: Patches) -> None:
    """Observe what a TRL trainer does beyond a Trainer's events."""
