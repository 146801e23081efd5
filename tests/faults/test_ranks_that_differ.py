"""One rank leaves out an event that the host does not need from it: what ends well without us ends well with us."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support import odd_ranks
from support.distributed import Ranks
from support.fault_table import Fault, faults

pytestmark = pytest.mark.slow

CASES = {
    "refused_step": "a rank refuses two optimizer steps",
    "every_step_refused": "a rank refuses every optimizer step",
    "evaluation": "a rank evaluates alone",
    "something_of_its_own": "a rank trains a module of its own",
    "more_micro_batches": "a rank has more micro-batches under `no_sync`",
    "uneven_join": "a rank runs out of batches inside a `Join`",
    "end_on_one_rank": "only one rank ends its training",
    "end_by_exception": "a rank raises after its last step",
    "recorded_alone": "a rank records keys alone, some without a value",
}
ACCELERATE = {
    "saved_alone": "`save_state` on the main process only",
    "freed_alone": "`free_memory` on one rank only",
}
PROMISED = "all ranks end, with the same parameters"
ROWS = {f"{host}-{case}": Fault(host, broken, PROMISED) for host in odd_ranks.HOSTS for case, broken in CASES.items()}
ROWS |= {f"Accelerate-{case}": Fault("Accelerate", broken, PROMISED) for case, broken in ACCELERATE.items()}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    own = Ranks(2)
    yield own
    own.close()


@faults(ROWS)
def test_both_ranks_end_with_the_same_parameters(case, ranks, tmp_path):
    host, _, what = case.partition("-")
    expected = ranks.run(odd_ranks.run, host, what, str(tmp_path / "without"), False, timeout=60)
    began = time.monotonic()
    assert ranks.run(odd_ranks.run, host, what, str(tmp_path / "with"), True, timeout=60) == expected
    assert time.monotonic() - began < 30


DIED = "a rank is killed after its last step"


@faults({host: Fault(host, DIED, "the other rank ends") for host in odd_ranks.HOSTS})
def test_a_rank_outlives_the_other(case, tmp_path):
    (parameters,) = Ranks(2).survivors(odd_ranks.die, case, str(tmp_path), dying=1)
    assert parameters
