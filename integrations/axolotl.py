"""Axolotl: a plugin for its YAML.

::

    plugins:
      - areal_callbacks.integrations.axolotl.AReaLMetricsPlugin
    areal_callbacks:
      every: 10
      moe_balance: {extended: true}

The section is optional; its keys are those of :class:`~areal_callbacks.MetricsConfig`.
"""

from __future__ import annotations

from typing import Any

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

try:
    from axolotl.integrations.base import BasePlugin
    from pydantic import BaseModel
except ImportError as error:
    raise ImportError("this plugin needs axolotl: pip install axolotl") from error


class AReaLMetricsArguments(BaseModel):
    """The section of the plugin in axolotl's YAML."""

    areal_callbacks: dict[str, Any] | None = None


class AReaLMetricsPlugin(BasePlugin):
    """Adds an :class:`~areal_callbacks.integrations.transformers.AReaLMetricsCallback` to axolotl's trainer.

    Raises:
        ValueError: an unknown key or a bad value in the section, with the choices.
    """

    def get_input_args(self) -> str:
        """Where axolotl finds the keys that the plugin adds to its YAML."""
        return f"{__name__}.{AReaLMetricsArguments.__name__}"

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[Any]:
        """The callback, as the section configures it."""
        return [AReaLMetricsCallback(config=dict(cfg.areal_callbacks or {}))]
