"""Runs a training script that knows nothing of this package, and measures it."""

from areal_callbacks.run.script import USAGE, main

__all__ = ["USAGE", "main"]
