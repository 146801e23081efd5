"""The fuzzers' targets with inputs of hypothesis: bytes, and seeds that were cut, joined and changed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fuzz.targets import SEEDS, TARGETS
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st

TOKENS = [
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\n", b" ", b"- ", b"&a ", b"*a", b"<<: ", b"? ", b"!!int ",
    b"1:1", b"NaN", b"1e999", b"-", b"0", b"\x1b[2J", b"\xff", b"\xe2\x80\xae", b"token", b"password", b"key", b"=",
    b"://", b"@", b"%3D", b"Bearer ", b"hf_", b"eyJ", b"--", b"'", b"<", b">", b"true", b"null", b"kind", b"metrics",
    b"step", b"layers",
]  # fmt: skip


def mutate(seed: bytes, number: int) -> bytes:
    """The seed with some of its bytes replaced by pieces that matter to a parser; the same for the same number."""
    source = random.Random(number)
    for _ in range(source.randrange(1, 6)):
        begin = source.randrange(len(seed) + 1)
        end = min(len(seed), begin + source.choice([0, 0, 1, 3, 20]))
        seed = seed[:begin] + source.choice(TOKENS) * source.choice([1, 1, 2, 40]) + seed[end:]
    return seed


def inputs_of(name: str) -> st.SearchStrategy[bytes]:
    seeds = st.sampled_from(SEEDS[name])
    mutants = st.builds(mutate, seeds, st.integers(0, 2**32))
    soup = st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join)
    return st.one_of(mutants, soup, st.binary(max_size=200), st.lists(st.one_of(seeds, mutants)).map(b"".join))


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_target(name: str) -> None:
    run: Callable[[bytes], None] = TARGETS[name]

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(inputs_of(name))
    def check(data: bytes) -> None:
        target(float(len(set(data))), label="different bytes")
        run(data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_pass(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)
