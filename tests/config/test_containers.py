"""Mappings and sequences of other classes than Python's own."""

from __future__ import annotations

import json
from collections import UserDict, UserList

from areal_callbacks.config import MetricsConfig


def test_containers_need_not_be_pythons_own() -> None:
    """Hydra hands over mappings and sequences of its own classes."""
    given = {"moe_balance": UserDict(extended=True), "include": UserList(["train_perf/*"])}
    given["stats_logger"] = UserDict(wandb=UserDict(mode="offline", tags=UserList(["a"])))
    config = MetricsConfig.make(UserDict(given), every=3)
    assert config.moe_balance.extended
    assert config.include == ("train_perf/*",)
    told = config.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert MetricsConfig.make(told) == config
