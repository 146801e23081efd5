"""The table of the stacks holds what the documentation says of it."""

from __future__ import annotations

from stacks.commands import STACKS
from stacks.measure import HERE
from stacks.run import renew_table

RESULTS = (HERE / "results.md").read_text()
ROWS = [tuple(line.strip("| ").split(" | ")) for line in RESULTS.splitlines()[2:]]


def test_rows_belong_to_commands_and_are_exact() -> None:
    names = {(f"`{stack.name}`", str(stack.processes)) for stack in STACKS}
    assert {(row[0], row[2]) for row in ROWS} <= names
    for row in ROWS:
        assert row[3].endswith(" exact"), row
        assert row[4].endswith((" exact", "dense")), row
        assert row[5] == "identical"
    assert len({row[0] for row in ROWS}) >= 10
    assert {"`trl sft`", "`trl dpo`", "`trl grpo`"} <= {row[0] for row in ROWS}
    assert len([row for row in ROWS if row[2] == "2"]) >= 3


def test_a_new_row_takes_the_place_of_the_older_one() -> None:
    renewed = ("`trl dpo`", "trl 9.9.9", "1", "1 exact", "2 exact", "identical")
    table = renew_table(RESULTS, [renewed]).splitlines()
    assert len(table) == len(ROWS) + 2
    assert "| " + " | ".join(renewed) + " |" in table
    assert renew_table(RESULTS, []) == RESULTS
