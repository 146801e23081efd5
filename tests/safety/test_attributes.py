"""Objects of the host are asked for attributes that they may not have, or not have yet."""

from __future__ import annotations

from typing import Any

import pytest

from areal_callbacks.safety.attributes import read_attribute


class Host:
    told = 3

    @property
    def not_set_up(self) -> Any:
        raise RuntimeError("call setup() first")

    @property
    def interrupted(self) -> Any:
        raise KeyboardInterrupt


def test_what_is_not_told_is_none() -> None:
    assert read_attribute(Host(), "told") == 3
    assert read_attribute(Host(), "absent") is None
    assert read_attribute(Host(), "not_set_up") is None
    with pytest.raises(KeyboardInterrupt):
        read_attribute(Host(), "interrupted")
