"""What a rule says about a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

Severity = Literal["severe", "warning"]

DOCS = "docs/findings.md"


class Layer(NamedTuple):
    """One layer of a stack of routers; the main decoder is the stack ``""``."""

    stack: str
    layer: int


@dataclass(frozen=True)
class Finding:
    """Something is wrong with a run.

    Attributes:
        rule: the file under ``findings/rules`` that found it.
        severity: ``severe``: the run is likely lost or wastes most of the machine; ``warning``: it deserves a look.
        step: the first step at which it was so.
        found_step: the step whose export made it certain; not before ``step``.
        last_step: the last step at which it was so: that of the last export if it goes on.
        key: the series that shows it best.
        layer: the layer that it concerns, None if it concerns none.
        summary: what is wrong, with its numbers, in a few words.
        advice: what to do, one sentence.
        evidence: the numbers that it was decided by.
    """

    rule: str
    severity: Severity
    step: int
    found_step: int
    last_step: int
    key: str
    summary: str
    advice: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    layer: Layer | None = None

    @property
    def docs(self) -> str:
        """Where the rule, its threshold and its remedies are described."""
        return f"{DOCS}#{self.rule}"

    @property
    def subject(self) -> str:
        """What tells two findings of one run apart."""
        return f"{self.rule} {self.key}"

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON, the link to the documentation among them; numbers may be NaN or infinite."""
        return {**asdict(self), "layer": self.layer and self.layer._asdict(), "docs": self.docs}
