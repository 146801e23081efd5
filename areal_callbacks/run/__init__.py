"""Runs an unchanged training script and measures it."""

from areal_callbacks.run.script import USAGE, main, run_script

__all__ = ["USAGE", "main", "run_script"]
