"""Random orders of calls, scopes, groups and exports against a plain NumPy model of AReaL's tracker."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from support.areal_model import TrackerModel, filled, metrics, pooled

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType

STAT_KINDS = ("AVG_MIN_MAX", "AVG", "SUM", "MIN", "MAX")
KEYS = [f"{letter}_{kind}" for kind in STAT_KINDS for letter in "xy"]
TOKENS = 3

numbers = st.floats(-1e3, 1e3, width=32) | st.sampled_from([math.nan, math.inf, -math.inf])
groups = st.sampled_from([None, None, "pair", "self"])
masks = st.lists(st.booleans(), min_size=TOKENS, max_size=TOKENS)
calls = st.one_of(
    st.tuples(st.just("denominator"), st.sampled_from("mn"), masks, groups),
    st.tuples(
        st.just("stat"),
        st.sampled_from("mn"),
        st.sampled_from(KEYS),
        st.lists(numbers, min_size=TOKENS, max_size=TOKENS),
        groups,
    ),
    st.tuples(st.just("scalar"), st.sampled_from("uv"), numbers, groups),
    st.tuples(st.just("enter"), st.sampled_from(["a", "b", None])),
    st.tuples(st.just("leave")),
)
exports = st.fixed_dictionaries(
    {
        "key": st.sampled_from([None, None, None, "m", "u", *KEYS]),
        "reset": st.sampled_from([True, True, False]),
        "groups": st.sampled_from([("world", None), ("world", "world"), (None, "world")]),
    }
)
several_calls = st.lists(calls, max_size=14)


class Twins:
    """A tracker and the model of it, given the same calls."""

    def __init__(self, name="", groups=None):
        self.tracker, self.model = StatsTracker(name), TrackerModel()
        self._groups = groups or {}
        self._scopes = {part: self.tracker.scope(part) for part in "ab"} | {None: self.tracker.disable_scope()}
        self._root = f"{name}/" if name else ""
        self._entered = []

    def call(self, kind, *arguments):
        getattr(self, f"_{kind}")(*arguments)

    def leave_every_scope(self):
        while self._entered:
            self._leave()

    def key(self, name):
        return self._root + self._prefix + name

    @property
    def _prefix(self):
        return self._entered[-1][1] if self._entered else ""

    def _enter(self, part):
        prefix = "" if part is None else f"{self._prefix}{part}/"
        self._entered.append((self._scopes[part].__enter__(), prefix))

    def _leave(self):
        if self._entered:
            self._entered.pop()[0].__exit__(None, None, None)

    def _scalar(self, name, value, group):
        self.tracker.scalar(**{name: value}, **self._own(group))
        self.model.scalar(self.key(name), value, group)

    def _denominator(self, name, mask, group):
        tensor = torch.tensor(mask)
        self.tracker.denominator(**{name: tensor}, **self._own(group))
        tensor.logical_not_()  # a mask is that of the call
        self.model.denominator(self.key(name), mask, group)

    def _stat(self, denominator, key, values, group):
        kind, parts = key.partition("_")[2], self._prefix.split("/")[:-1]
        around = [self._root + "".join(f"{part}/" for part in parts[:depth]) for depth in range(len(parts), -1, -1)]
        known = self.model.stat(self.key(key), [place + denominator for place in around], kind, values, group)
        with contextlib.nullcontext() if known else pytest.raises(ValueError, match="unknown denominator"):
            tensors = {key: torch.tensor(values, dtype=torch.float64)}
            self.tracker.stat(denominator, ReduceType[kind], **tensors, **self._own(group))

    def _own(self, group):
        return {"reduce_group": self._groups[group]} if group in self._groups else {}


def expected(models, rank, export, key):
    """What this rank's export must hold: everything that reaches it from each rank."""
    brought = [{name: e for name, e in model.entries.items() if key in (None, name)} for model in models]
    over, sync = export["groups"]
    reaching = [
        {
            name: entry
            for name, entry in entries.items()
            if other == rank or entry[1] == "pair" or (entry[1] is None and over == "world")
        }
        for other, entries in enumerate(brought)
    ]
    mine, everywhere = pooled(reaching), pooled(brought)
    if key is not None and not (everywhere if sync else mine):
        return {key: math.nan, f"{key}__count": 0.0}
    return filled(metrics(mine), everywhere) if sync else metrics(mine)


def assert_same(exported, reference):
    assert exported.keys() == reference.keys()
    for name, value in reference.items():
        np.testing.assert_allclose(exported[name], value, rtol=1e-9, atol=1e-6, err_msg=name)


@settings(deadline=None, max_examples=150)
@given(name=st.sampled_from(["", "actor"]), rounds=st.lists(st.tuples(several_calls, exports), max_size=4))
def test_one_process_exports_what_the_model_does(name, rounds):
    twins = Twins(name)
    for round_calls, export in rounds:
        for call in round_calls:
            twins.call(*call)
        key = None if export["key"] is None else twins.key(export["key"])
        exported = twins.tracker.export(export["key"], reset=export["reset"])
        assert_same(exported, expected([twins.model], 0, {"groups": (None, None)}, key))
        if export["reset"]:
            twins.model.reset(key)


orders = st.lists(
    st.tuples(st.just("denominator"), st.just("m"), masks, st.none())
    | st.tuples(
        st.just("stat"),
        st.just("m"),
        st.sampled_from(["x_SUM", "y_SUM", "z_SUM"]),
        st.lists(st.integers(1, 9).map(float), min_size=TOKENS, max_size=TOKENS),
        st.none(),
    ),
    max_size=16,
)


@settings(deadline=None, max_examples=300)
@given(orders)
def test_any_order_of_masks_and_stats(calls):
    twins = Twins()
    for call in calls:
        twins.call(*call)
    assert twins.tracker.export() == metrics(pooled([twins.model.entries]))


bursts = st.lists(
    st.lists(masks, min_size=1, max_size=4).flatmap(
        lambda burst: st.tuples(
            st.just(burst),
            st.permutations([key for key in ("x", "y", "z") for _ in burst]),
            st.lists(st.lists(numbers, min_size=TOKENS, max_size=TOKENS), min_size=3 * len(burst)).map(
                lambda values: values[: 3 * len(burst)]
            ),
        )
    ),
    max_size=5,
)


@settings(deadline=None, max_examples=60)
@given(bursts)
def test_every_value_of_a_burst_belongs_to_its_mask_whatever_the_order_of_the_keys(bursts):
    """AReaL's rule and nothing else: all values and all masks in two lists, side by side."""
    tracker, all_masks, all_values = StatsTracker(), [], {key: [] for key in "xyz"}
    for burst, order, values in bursts:
        for mask in burst:
            tracker.denominator(m=torch.tensor(mask))
        for key, row in zip(order, values):
            tracker.stat("m", **{key: torch.tensor(row, dtype=torch.float64)})
            all_values[key].append(row)
        all_masks += burst
    reference = {"m": ("DENOMINATOR", [1.0] * sum(map(sum, all_masks)))} if all_masks else {}
    for key, rows in all_values.items():
        if rows:
            chosen = [v for row, mask in zip(rows, all_masks) for v, here in zip(row, mask) if here]
            reference[key] = "AVG_MIN_MAX", chosen
    assert_same(tracker.export(), metrics(reference))


# -- two processes


def play(both_ranks, calls, export):
    """Make a round's calls on these ranks' twins; the full key that the export is of."""
    for twins, own_calls in zip(both_ranks, calls):
        for call in own_calls:
            twins.call(*call)
        twins.leave_every_scope()
    return None if export["key"] is None else both_ranks[0].key(export["key"])


def run_programs(world, programs):
    rank = dist.get_rank(world)
    # "self" of the second rank is a group that leaves it out, as new_group returns it
    groups, exported = {"pair": dist.new_group([0, 1]), "self": dist.new_group([0])}, []
    for number, (rounds, name) in enumerate(programs):
        twins = Twins(f"{name}{number}", groups)
        for calls, export in rounds:
            key = play([twins], [calls[rank]], export)
            over, sync = (None if choice is None else world for choice in export["groups"])
            exported.append(twins.tracker.export(export["key"], over, export["reset"], sync))
            if export["reset"]:
                twins.model.reset(key)
    return exported


def model_programs(programs):
    """For each rank what its exports must hold."""
    exported = [], []
    for number, (rounds, name) in enumerate(programs):
        ranks = [Twins(f"{name}{number}"), Twins(f"{name}{number}")]
        for calls, export in rounds:
            key = play(ranks, calls, export)
            for rank in range(2):
                exported[rank].append(expected([twins.model for twins in ranks], rank, export, key))
            for twins in ranks if export["reset"] else ():
                twins.model.reset(key)
                twins.tracker.collect(key=key)
    return exported


rounds = st.lists(st.tuples(st.tuples(several_calls, several_calls), exports), min_size=1, max_size=3)
programs = st.lists(st.tuples(rounds, st.sampled_from(["actor", "critic"])), min_size=1, max_size=6)


@settings(deadline=None, max_examples=20)
@given(programs)
def test_two_processes_export_what_the_model_does(two_ranks, programs):
    for exported, reference in zip(two_ranks.run(run_programs, programs), model_programs(programs)):
        assert len(exported) == len(reference)
        for mine, theirs in zip(exported, reference):
            assert_same(mine, theirs)
