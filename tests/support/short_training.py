"""Two steps of a TRL trainer on the CPU, logged each, that leave nothing behind."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "dataloader_pin_memory": False,
}
