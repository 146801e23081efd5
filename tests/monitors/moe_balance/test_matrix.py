"""Counts are exact however a model is wrapped, checkpointed and compiled, and whatever a step does besides.

The cells are chosen pairwise: every two values of different columns that can meet do meet.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.distributed import Ranks
from support.moe_cells import STEPS, Cell, Outcome, run
from support.toy_moe import TOP_K

MICRO_BATCHES, TOKENS = 2, 10

CELLS = [
    Cell(*(field.strip() for field in line.split("|")))
    for line in """
    no    | no                 | no       | eager     | accumulate
    no    | no                 | whole    | inductor  | idle forwards
    no    | hf reentrant       | whole    | aot_eager | several forwards
    no    | hf non-reentrant   | in place | aot_eager | idle forwards
    no    | selective          | blocks   | aot_eager | exceptions
    no    | checkpoint_wrapper | in place | inductor  | several forwards
    no    | whole              | in place | aot_eager | idle forwards
    peft  | no                 | in place | aot_eager | exceptions
    peft  | hf reentrant       | no       | eager     | idle forwards
    peft  | hf non-reentrant   | blocks   | aot_eager | several forwards
    peft  | selective          | whole    | aot_eager | accumulate
    peft  | checkpoint_wrapper | blocks   | inductor  | idle forwards
    peft  | whole              | no       | eager     | several forwards
    ddp   | no                 | blocks   | inductor  | several forwards
    ddp   | hf reentrant       | in place | aot_eager | accumulate
    ddp   | hf non-reentrant   | no       | eager     | accumulate
    ddp   | selective          | no       | eager     | idle forwards
    ddp   | checkpoint_wrapper | whole    | aot_eager | exceptions
    ddp   | whole              | whole    | aot_eager | accumulate
    fsdp1 | no                 | no       | eager     | idle forwards
    fsdp1 | hf reentrant       | blocks   | aot_eager | accumulate
    fsdp1 | hf non-reentrant   | whole    | aot_eager | several forwards
    fsdp1 | selective          | in place | aot_eager | accumulate
    fsdp1 | checkpoint_wrapper | no       | eager     | accumulate
    fsdp2 | no                 | whole    | aot_eager | accumulate
    fsdp2 | hf reentrant       | no       | eager     | idle forwards
    fsdp2 | hf non-reentrant   | in place | aot_eager | accumulate
    fsdp2 | selective          | whole    | aot_eager | idle forwards
    fsdp2 | checkpoint_wrapper | no       | eager     | accumulate
    fsdp2 | whole              | blocks   | aot_eager | idle forwards
    """.strip().splitlines()
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of torch.compile, FSDP and PEFT; what we report is checked below
]


def name(cell: Cell) -> str:
    return "-".join(value.replace(" ", "_") for value in cell)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.wrapper in ("no", "peft")], ids=name)
def test_one_process(cell: Cell) -> None:
    check(cell, [Outcome(*run(None, *cell))])


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.wrapper not in ("no", "peft")], ids=name)
def test_two_processes(cell: Cell, two_ranks: Ranks) -> None:
    check(cell, [Outcome(*values) for values in two_ranks.run(run, *cell, timeout=240)])


def check(cell: Cell, outcomes: list[Outcome]) -> None:
    assert [outcome.messages for outcome in outcomes] == [[]] * len(outcomes)
    for outcome in outcomes:
        assert outcome.counted == outcomes[0].counted
        assert outcome.graphs == outcome.graphs_after_first_step, "recompiled after the first step"
        assert (outcome.graphs > 0) == (cell.compiled != "no")
    expected = sum(np.array(outcome.expected) for outcome in outcomes)
    assert outcomes[0].counted == expected.tolist()
    total = STEPS * MICRO_BATCHES * TOKENS * TOP_K * len(outcomes)
    assert expected.sum(axis=1).tolist() == [total] * len(expected)


def test_the_cells_are_few_and_meet_pairwise() -> None:
    assert len(CELLS) == len(set(CELLS)) <= 30
    assert sum(cell.backend == "inductor" for cell in CELLS) == 4
    columns = [sorted({cell[index] for cell in CELLS}) for index in range(3)]
    cannot_meet = {("fsdp1", "whole")}  # FSDP1 does not run its hooks inside a checkpoint
    for first, second in itertools.combinations(range(3), 2):
        wanted = set(itertools.product(columns[first], columns[second])) - cannot_meet
        met = {(cell[first], cell[second]) for cell in CELLS}
        assert wanted - met == set(), f"columns {Cell._fields[first]} and {Cell._fields[second]}"
