"""Runs a training script that knows nothing of this package, and measures it."""

from areal_callbacks.run.script import USAGE, main, run_script

__all__ = ["USAGE", "main", "run_script"]
