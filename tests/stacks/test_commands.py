"""What people type, counted without the package and under ``areal-callbacks run``: what is installed for the tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from stacks.commands import STACKS, Stack
from stacks.measure import HERE, count_with_us, count_without_us

BIN = Path(sysconfig.get_path("scripts"))
HERE_INSTALLED = ("trl sft", "trl dpo", "trl grpo", "LightningCLI")
CHOSEN = [stack for stack in STACKS if stack.name in HERE_INSTALLED and stack.processes == 1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    subprocess.run([sys.executable, HERE / "inputs.py", folder], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("stack", CHOSEN, ids=[stack.name for stack in CHOSEN])
def test_tokens_and_routed_counts_are_exact_and_weights_the_same(stack: Stack, inputs: Path, tmp_path: Path) -> None:
    without = count_without_us(stack, tmp_path / "without", BIN, inputs)
    assert without.problem == ""
    assert without.tokens > 0
    assert sum(map(sum, without.routed)) > 0
    assert count_with_us(stack, tmp_path / "with", BIN, inputs) == without
    assert without.weights


def test_every_command_is_chosen() -> None:
    assert [stack.name for stack in CHOSEN] == list(HERE_INSTALLED)
