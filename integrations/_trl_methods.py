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
    return [name for name in names if _parameters(type(trainer), name) != (_parameters(own, name) or [])]


def _parameters(owner: type, name: str) -> list[str] | None:
    method = getattr(owner, name, None)
    return None if method is None else list(inspect.signature(method).parameters)


def report_foreign(trainer: Any, names: list[str]) -> None:
    """One message for a trainer whose methods or batches are of its own kind."""
    kind = type(trainer)
    report_once(
        "trl:batch",
        f"{kind.__module__}.{kind.__qualname__} has methods or batches of its own kind ({', '.join(names)}): no policy "
        "diagnostics of them",
    )


def find_end_ids(trainer: Any) -> list[int]:
    """Tokens that end a completion, and the padding; newer releases know several ends."""
    processor = trainer.processing_class
    tokenizer = getattr(trainer, "_tokenizer", None) or getattr(processor, "tokenizer", processor)
    ends = getattr(trainer, "eos_token_ids", None) or [getattr(trainer, "eos_token_id", tokenizer.eos_token_id)]
    return [end for end in (*ends, tokenizer.pad_token_id) if end is not None]
