"""TRL's trainers: the callback for the Hugging Face Trainer, which also records policy diagnostics of GRPO and RLOO."""

from __future__ import annotations

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

__all__ = ["AReaLMetricsCallback"]
