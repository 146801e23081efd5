"""Every block says where its formula comes from."""

from __future__ import annotations

import inspect

import pytest

from areal_callbacks.flops import blocks

FUNCTIONS = {name: value for name, value in vars(blocks).items() if inspect.isfunction(value)}
DEFINITIONS = {"projection": "one product of a vector and a matrix", "unweighted": "makes a record of a number"}


def test_the_blocks_are_found() -> None:
    assert len(FUNCTIONS) >= 15


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - DEFINITIONS.keys()))
def test_a_block_names_its_source(name: str) -> None:
    assert "Source:" in (inspect.getdoc(FUNCTIONS[name]) or "")
