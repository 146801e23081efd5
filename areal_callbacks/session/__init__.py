"""One run: what observes a training, when its numbers are reduced, and where they go."""

from areal_callbacks.session.session import MetricsSession

__all__ = ["MetricsSession"]
