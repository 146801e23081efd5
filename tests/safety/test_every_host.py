"""Everything of ours that a host runs is found and made to raise: the weights are those of a training without us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import hosts
from support.faults import Place, close_sessions, discover, planted

from areal_callbacks.safety import reporting
from areal_callbacks.safety.hooks import Hook

pytestmark = pytest.mark.slow


class Bench:
    """One host, what it trains without us, and what the door runs there."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hosts, "LEARNING_RATE", 0.1)
        monkeypatch.setattr(hosts, "ROWS", 8)
        monkeypatch.setattr(hosts, "EPOCHS", 1)
        self._name, self._folder, self._monkeypatch = name, folder, monkeypatch
        self.expected = self.weights(measure=False)
        self.places = discover(monkeypatch, self.weights)
        assert self.left_behind() == []

    def weights(self, *, measure: bool = True) -> torch.Tensor:
        self.model = hosts.HOSTS[self._name](str(self._folder), measure=measure)
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def left_behind(self) -> list[str]:
        """Modules that carry hooks of ours after a training that ended well."""
        return [
            name
            for name, module in self.model.named_modules()
            for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
            if isinstance(hook, Hook)
        ]

    def train_with(self, places: set[Place], when: str, caplog: pytest.LogCaptureFixture) -> list[str]:
        """The messages of a training in which these places raise, once its weights are the expected ones."""
        reporting.reset()
        caplog.clear()
        with planted(self._monkeypatch, places, when):
            weights = self.weights()
        close_sessions()
        assert torch.equal(weights, self.expected), places
        return [message for message in caplog.messages if "planted" in message]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Bench]:
    return lambda name: Bench(name, tmp_path, monkeypatch)


@pytest.mark.parametrize("host", hosts.HOSTS)
def test_whatever_raises_costs_one_message_and_no_weight(host, bench, caplog):
    found = bench(host)
    assert {"hook", "entry", "guarded"} <= {place.kind for place in found.places}
    for place in found.places:
        assert len(found.train_with({place}, "before", caplog)) == 1, place
    for kind in ("wrap", "hook"):
        places = {place for place in found.places if place.kind == kind}
        messages = found.train_with(places, "after", caplog) if places else ["there are none"]
        assert 1 <= len(set(messages)) == len(messages) <= max(len(places), 1), (places, messages)
