"""Which methods of a trainer are TRL's, and what TRL's releases call the same thing."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from areal_callbacks.safety.reporting import report_once

try:
    from trl import GRPOTrainer, RLOOTrainer
except ImportError as error:
    raise ImportError("this integration needs TRL: pip install 'areal-callbacks[trl]'") from error

__all__ = ["GRPOTrainer", "RLOOTrainer", "find_end_ids", "find_foreign_methods", "report_foreign"]


def find_foreign_methods(trainer: Any, names: Iterable[str]) -> list[str]:
    """Methods that this trainer has with other parameters than TRL's own, or that TRL's release does not have.

    Trainers of other libraries override them; what they are given and return there is not what TRL's are.
    """
    own = GRPOTrainer if isinstance(trainer, GRPOTrainer) else RLOOTrainer
    return [name for name in names if not hasattr(own, name) or _parameters(trainer, name) != _parameters(own, name)]


def _parameters(owner: Any, name: str) -> list[str]:
    method = getattr(owner, name)
    names = list(inspect.signature(method).parameters)
    return names if inspect.ismethod(method) else names[1:]


def report_foreign(trainer: Any, names: list[str]) -> None:
    """One message for a trainer whose methods or batches are of its own kind."""
    kind = type(trainer)
    report_once(
        "trl:batch",
        f"{kind.__module__}.{kind.__qualname__} has {', '.join(names)} of its own kind: no policy diagnostics of it "
        "(ppo_actor/…); all else is measured",
    )


def find_end_ids(trainer: Any) -> list[int]:
    """Tokens that end a completion, and the padding; newer releases know several ends."""
    processor = trainer.processing_class
    tokenizer = getattr(trainer, "_tokenizer", None) or getattr(processor, "tokenizer", processor)
    ends = getattr(trainer, "eos_token_ids", None) or [getattr(trainer, "eos_token_id", tokenizer.eos_token_id)]
    return [end for end in (*ends, tokenizer.pad_token_id) if end is not None]
