"""One tracker in one process; expected values by hand or from NumPy in float64."""

from __future__ import annotations

import gc
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.core.types import ReduceType

INF, NAN = math.inf, math.nan


def all_true(values):
    return torch.ones(torch.as_tensor(values).shape, dtype=torch.bool)


def record(tracker, reduce_type=None, **values):
    for name, numbers in values.items():
        tensor = torch.as_tensor(numbers)
        tracker.stat_compact(all_true(tensor), reduce_type, **{name: tensor})


def same(first, second):
    """Equality of exports in which NaN equals NaN."""
    return {key: str(value) for key, value in first.items()} == {key: str(value) for key, value in second.items()}


def state(tracker):
    """Everything that an export would tell now, and the masks."""
    return tracker.export(reset=False), {name: mask.tolist() for name, mask in tracker._masks.items()}


# -- what each kind exports


@pytest.mark.parametrize(
    ("reduce_type", "expected"),
    [
        (None, {"x/avg": 2.0, "x/min": -1.0, "x/max": 5.0}),
        (ReduceType.AVG_MIN_MAX, {"x/avg": 2.0, "x/min": -1.0, "x/max": 5.0}),
        (ReduceType.AVG, {"x": 2.0}),
        (ReduceType.SUM, {"x": 6.0}),
        (ReduceType.MIN, {"x": -1.0}),
        (ReduceType.MAX, {"x": 5.0}),
    ],
)
def test_every_reduce_type_exports_its_names_over_the_masked_elements(reduce_type, expected):
    tracker = StatsTracker()
    tracker.denominator(valid=torch.tensor([[True, True], [True, False]]))
    tracker.stat("valid", reduce_type, x=torch.tensor([[-1.0, 2.0], [5.0, 100.0]]))
    assert tracker.export() == {"valid": 3.0, **expected}


def test_a_scalar_exports_its_mean_and_count():
    tracker = StatsTracker()
    for reward in (1.0, 0.0, 0.5):
        tracker.scalar(reward=reward)
    assert tracker.export() == {"reward": 0.5, "reward__count": 3.0}


@pytest.mark.parametrize("kind", [ReduceType.SCALAR, ReduceType.DENOMINATOR, "avg", 3])
def test_stat_takes_only_the_tensor_kinds_and_names_them(kind):
    with pytest.raises(ValueError, match="AVG_MIN_MAX, AVG, SUM, MIN, MAX, got"):
        StatsTracker().stat_compact(torch.ones(1, dtype=torch.bool), kind, x=torch.ones(1))


def test_an_empty_population_is_a_zero_sum_and_has_no_average_or_extremum():
    tracker = StatsTracker()
    tracker.denominator(none=torch.zeros(3, dtype=torch.bool))
    for name, kind in {"a": None, "b": ReduceType.AVG, "c": ReduceType.MIN, "d": ReduceType.MAX}.items():
        tracker.stat("none", kind, **{name: torch.ones(3)})
    tracker.stat("none", ReduceType.SUM, total=torch.ones(3))
    assert tracker.export() == {"none": 0.0, "total": 0.0}


def test_a_tensor_without_elements_is_an_empty_population():
    tracker = StatsTracker()
    tracker.denominator(none=torch.zeros(0, 4, dtype=torch.bool))
    tracker.stat("none", ReduceType.SUM, total=torch.ones(0, 4))
    tracker.stat("none", x=torch.ones(0, 4))
    assert tracker.export() == {"none": 0.0, "total": 0.0}


def test_what_is_not_recorded_again_is_absent():
    tracker = StatsTracker()
    record(tracker, ReduceType.SUM, total=[0.0])
    assert tracker.export() == {"total": 0.0}
    assert tracker.export() == {}


# -- numbers


def test_means_are_over_elements_and_not_over_batches():
    tracker = StatsTracker()
    record(tracker, x=[1.0])
    record(tracker, x=[3.0, 5.0, 7.0])
    assert tracker.export() == {"x/avg": 4.0, "x/min": 1.0, "x/max": 7.0}  # the mean of the batch means would be 3


def test_max_is_the_maximum_over_batches_and_not_a_mean_of_maxima():
    tracker = StatsTracker()
    record(tracker, ReduceType.MAX, x=[9.0])
    record(tracker, ReduceType.MAX, x=[1.0])
    assert tracker.export() == {"x": 9.0}


@pytest.mark.parametrize(
    "kind", [ReduceType.AVG_MIN_MAX, ReduceType.AVG, ReduceType.SUM, ReduceType.MIN, ReduceType.MAX]
)
@pytest.mark.parametrize("batches", [[[NAN], [1.0, 2.0]], [[1.0, 2.0], [NAN]], [[1.0, NAN, 2.0]], [[NAN, 1.0], [NAN]]])
def test_nan_propagates_whatever_the_order(kind, batches):
    tracker = StatsTracker()
    for batch in batches:
        record(tracker, kind, x=batch)
    values = tracker.export()
    assert len(values) == (3 if kind is ReduceType.AVG_MIN_MAX else 1)
    assert all(math.isnan(value) for value in values.values())


def test_infinities_are_kept():
    tracker = StatsTracker()
    record(tracker, x=[1.0, INF], y=[1.0, -INF], z=[INF, -INF])
    record(tracker, ReduceType.MAX, only_low=[-INF])
    record(tracker, ReduceType.MIN, only_high=[INF])
    expected = {
        **{"x/avg": INF, "x/min": 1.0, "x/max": INF},
        **{"y/avg": -INF, "y/min": -INF, "y/max": 1.0},
        **{"z/avg": NAN, "z/min": -INF, "z/max": INF},
        **{"only_low": -INF, "only_high": INF},
    }
    assert same(tracker.export(), expected)


def test_masked_padding_cannot_reach_the_result():
    tracker = StatsTracker()
    tracker.denominator(valid=torch.tensor([True, False, False, False]))
    tracker.stat("valid", x=torch.tensor([2.0, NAN, INF, -INF]))
    assert tracker.export() == {"valid": 1.0, "x/avg": 2.0, "x/min": 2.0, "x/max": 2.0}


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8]
)
def test_every_real_dtype_is_taken_and_summed_in_float64(dtype):
    values = torch.tensor([1, 2, 3, 251], dtype=dtype)
    exact = values.double().numpy().astype(np.float64)
    tracker = StatsTracker()
    record(tracker, x=values)
    assert tracker.export() == {"x/avg": exact.mean(), "x/min": exact.min(), "x/max": exact.max()}


def test_bfloat16_values_do_not_lose_their_sum():
    values = torch.full((1000,), 1.0078125, dtype=torch.bfloat16)  # exact in bfloat16, its running sum is not
    tracker = StatsTracker()
    record(tracker, ReduceType.SUM, x=values)
    assert tracker.export() == {"x": 1007.8125}


def test_complex_values_are_refused():
    with pytest.raises(ValueError, match=r"must be a real tensor, got torch\.complex64"):
        StatsTracker().stat_compact(all_true([1]), x=torch.ones(1, dtype=torch.complex64))


@pytest.mark.parametrize("number", [16777217, 16777217.0, torch.tensor(16777217), np.float64(16777217)])
def test_a_scalar_beyond_float32_is_exported_exactly(number):
    tracker = StatsTracker()
    tracker.scalar(step=number)
    assert tracker.export() == {"step": 16777217.0, "step__count": 1.0}


def test_counts_beyond_float32_are_exact():
    tracker = StatsTracker()
    tracker.denominator(valid=torch.ones(2**24, dtype=torch.bool))
    tracker.denominator(valid=torch.ones(1, dtype=torch.bool))
    tracker.summaries(ReduceType.AVG, x=torch.tensor([2.0**53 - 1, 2.0**53 - 1, 1.0, 1.0], dtype=torch.float64))
    assert tracker.export() == {"valid": 2**24 + 1, "x": 1.0}


@pytest.mark.parametrize(
    "number", [2, 2.0, np.float32(2.0), np.int64(2), torch.tensor(2.0, requires_grad=True), torch.tensor([[2]])]
)
def test_a_scalar_may_be_any_real_number_or_one_element_tensor(number):
    tracker = StatsTracker()
    tracker.scalar(x=number, y=True)
    tracker.scalar(x=0.0)
    assert tracker.export() == {"x": 1.0, "x__count": 2.0, "y": 1.0, "y__count": 1.0}


@pytest.mark.parametrize("value", ["1.0", None, 1j, torch.ones(2), torch.tensor(1j), np.ones(2), 10**400])
def test_a_scalar_that_is_no_number_is_refused_and_leaves_nothing_behind(value):
    tracker = StatsTracker()
    tracker.scalar(good=1.0)
    before = state(tracker)
    with pytest.raises(ValueError, match="scalar 'bad' must be"):
        tracker.scalar(good=5.0, new=1.0, bad=value)
    assert state(tracker) == before


def test_ready_summaries_are_merged_as_they_are():
    tracker = StatsTracker()
    tracker.summaries(ReduceType.AVG_MIN_MAX, x=torch.tensor([6.0, 2.0, 1.0, 5.0], dtype=torch.float64))
    tracker.summaries(ReduceType.AVG_MIN_MAX, x=torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    assert tracker.export() == {"x/avg": 2.0, "x/min": 0.0, "x/max": 5.0}
    with pytest.raises(ValueError, match=r"float64 tensor of shape \[4\]"):
        tracker.summaries(ReduceType.AVG, x=torch.ones(4))


# -- denominators


def test_stat_pairs_with_the_latest_mask():
    tracker = StatsTracker()
    tracker.denominator(valid=torch.tensor([True, False]))
    tracker.stat("valid", x=torch.tensor([1.0, 9.0]))
    tracker.denominator(valid=torch.tensor([False, True, True]))
    tracker.stat("valid", x=torch.tensor([9.0, 2.0, 6.0]))
    assert tracker.export() == {"valid": 3.0, "x/avg": 3.0, "x/min": 1.0, "x/max": 6.0}


def test_a_denominator_is_found_in_the_enclosing_scopes_and_the_nearest_wins():
    tracker = StatsTracker("actor")
    tracker.denominator(valid=torch.tensor([True, True]))
    with tracker.scope("ppo"):
        tracker.stat("valid", ReduceType.SUM, outer=torch.tensor([1.0, 2.0]))
        tracker.denominator(valid=torch.tensor([True, False]))
        with tracker.scope("update/inner"):
            tracker.stat("valid", ReduceType.SUM, nearest=torch.tensor([1.0, 2.0]))
    expected = {
        "actor/valid": 2.0,
        "actor/ppo/valid": 1.0,
        "actor/ppo/outer": 3.0,
        "actor/ppo/update/inner/nearest": 1.0,
    }
    assert tracker.export() == expected


def test_a_denominator_of_an_inner_or_other_scope_is_unknown():
    tracker = StatsTracker()
    with tracker.scope("inner"):
        tracker.denominator(valid=torch.ones(1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"unknown denominator 'valid'.*inner/valid"):
        tracker.stat("valid", x=torch.ones(1))


# -- errors leave nothing behind


MISTAKES = {
    "shape": lambda t: t.stat("valid", x=torch.ones(3), y=torch.ones(4)),
    "broadcastable shape": lambda t: t.stat("valid", x=torch.ones(3), y=torch.ones(1, 3)),
    "unknown denominator": lambda t: t.stat("other", x=torch.ones(3)),
    "no tensor": lambda t: t.stat("valid", x=torch.ones(3), y=1.0),
    "float mask": lambda t: t.denominator(new=torch.ones(3, dtype=torch.bool), bad=torch.ones(3)),
    "list mask": lambda t: t.denominator(new=torch.ones(3, dtype=torch.bool), bad=[True]),
    "float mask given directly": lambda t: t.stat_compact(torch.ones(3), x=torch.ones(3)),
    "kind": lambda t: t.stat("valid", ReduceType.SUM, x=torch.ones(3), loss=torch.ones(3)),
    "scalar as stat": lambda t: t.stat("valid", x=torch.ones(3), lr=torch.ones(3)),
    "stat as scalar": lambda t: t.scalar(new=1.0, loss=1.0),
    "denominator as scalar": lambda t: t.scalar(new=1.0, valid=1.0),
    "scalar as denominator": lambda t: t.denominator(new=torch.ones(3, dtype=torch.bool), lr=torch.ones(3) > 0),
    "name of a component": lambda t: t.scalar(**{"new": 1.0, "loss/avg": 1.0}),
    "name of a count": lambda t: t.scalar(lr__count=1.0),
    "component of a name": lambda t: t.stat("valid", x=torch.ones(3), **{"sub": torch.ones(3)}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_caught_mistake_leaves_nothing_behind(mistake):
    tracker = StatsTracker()
    tracker.denominator(valid=torch.tensor([True, True, False]))
    tracker.stat("valid", loss=torch.tensor([1.0, 2.0, 3.0]))
    tracker.scalar(**{"lr": 0.1, "sub/min": 1.0})
    before = state(tracker)
    with pytest.raises(ValueError):
        MISTAKES[mistake](tracker)
    assert state(tracker) == before
    tracker.stat("valid", ReduceType.AVG, x=torch.tensor([4.0, 6.0, 0.0]), y=torch.zeros(3))
    tracker.denominator(new=torch.tensor([True]), bad=torch.tensor([True]))
    assert tracker.export() == {**before[0], "x": 5.0, "y": 0.0, "new": 1.0, "bad": 1.0}


def test_a_key_may_change_its_kind_after_an_export():
    tracker = StatsTracker()
    tracker.scalar(x=1.0)
    tracker.export()
    record(tracker, ReduceType.SUM, x=[1.0, 2.0])
    assert tracker.export() == {"x": 3.0}
    tracker.scalar(x=1.0)
    tracker.export(key="x")
    record(tracker, x=[1.0])
    assert tracker.export() == {"x/avg": 1.0, "x/min": 1.0, "x/max": 1.0}


# -- names


def test_a_named_tracker_prefixes_its_keys_and_slashes_do_not_matter():
    tracker = StatsTracker("/rollout/")
    with tracker.scope("train/"):
        tracker.scalar(reward=1.0)
    assert tracker.export() == {"rollout/train/reward": 1.0, "rollout/train/reward__count": 1.0}


def test_metrics_may_have_the_names_of_python_parameters():
    tracker = StatsTracker()
    tracker.scalar(self=1.0, key=2.0, values=3.0)
    assert tracker.export() == {
        **{"self": 1.0, "self__count": 1.0, "key": 2.0, "key__count": 1.0, "values": 3.0, "values__count": 1.0}
    }


# -- timing


def test_timing_ignores_scope_and_name_and_survives_an_exception():
    tracker = StatsTracker("rollout")
    with tracker.scope("deep"), pytest.raises(KeyError), tracker.record_timing("generate"):
        raise KeyError
    with tracker.record_timing("generate"):
        pass
    values = tracker.export()
    assert values.keys() == {"timeperf/generate", "timeperf/generate__count"}
    assert values["timeperf/generate__count"] == 2.0
    assert 0.0 <= values["timeperf/generate"] < 10.0


def test_timing_measures_seconds():
    tracker = StatsTracker()
    with tracker.record_timing("wait"):
        threading.Event().wait(0.02)
    assert 0.02 <= tracker.export()["timeperf/wait"] < 10.0


# -- export


def test_export_of_one_key_leaves_the_rest():
    tracker = StatsTracker("actor")
    with tracker.scope("update"):
        tracker.scalar(a=1.0, b=2.0)
        record(tracker, x=[1.0, 3.0], y=[5.0], z=[7.0])
        assert tracker.export(key="x") == {
            "actor/update/x/avg": 2.0,
            "actor/update/x/min": 1.0,
            "actor/update/x/max": 3.0,
        }
        assert tracker.export(key="x") == {}
        assert tracker.export(key="a", reset=False) == {"actor/update/a": 1.0, "actor/update/a__count": 1.0}
        assert tracker.export(key="a") == {"actor/update/a": 1.0, "actor/update/a__count": 1.0}
        record(tracker, x=[9.0])
    rest = tracker.export()
    names = {name.removeprefix("actor/update/").partition("/")[0] for name in rest}
    assert names == {"b", "b__count", "x", "y", "z"}
    assert [rest[f"actor/update/{name}/max"] for name in "xyz"] == [9.0, 5.0, 7.0]


def test_export_of_a_timing_ignores_the_scope_too():
    tracker = StatsTracker("actor")
    with tracker.record_timing("step"):
        pass
    with tracker.scope("anything"):
        assert tracker.export(key="timeperf/step").keys() == {"timeperf/step", "timeperf/step__count"}
    assert tracker.export() == {}


def test_export_of_an_unknown_key_is_empty():
    tracker = StatsTracker()
    tracker.scalar(a=1.0)
    assert tracker.export(key="b") == {}
    assert tracker.export() == {"a": 1.0, "a__count": 1.0}


def test_export_without_reset_keeps_everything():
    tracker = StatsTracker()
    tracker.denominator(valid=torch.ones(2, dtype=torch.bool))
    tracker.stat("valid", x=torch.tensor([1.0, 3.0]))
    first = tracker.export(reset=False)
    assert tracker.export(reset=False) == first
    tracker.stat("valid", x=torch.tensor([5.0, 7.0]))
    assert tracker.export() == {"valid": 2.0, "x/avg": 4.0, "x/min": 1.0, "x/max": 7.0}


# -- state that callers must not notice


def test_inputs_are_not_changed_and_not_kept():
    tracker = StatsTracker()
    values, mask = torch.tensor([1.0, NAN, 3.0]), torch.tensor([True, False, True])
    tracker.stat_compact(mask, x=values)
    torch.testing.assert_close(values, torch.tensor([1.0, NAN, 3.0]), rtol=0, atol=0, equal_nan=True)
    assert mask.tolist() == [True, False, True]
    values.fill_(100.0)
    assert tracker.export() == {"x/avg": 2.0, "x/min": 1.0, "x/max": 3.0}


def test_gradients_are_not_held():
    tracker = StatsTracker()
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        tracker.stat_compact(all_true(weight), x=weight * 2)
        tracker.scalar(loss=(weight * 2).sum())
    records = tracker.collect()
    assert not records.rows.requires_grad
    assert records.metrics() == {"loss": 6.0, "loss__count": 2.0, "x/avg": 3.0, "x/min": 2.0, "x/max": 4.0}


@pytest.mark.parametrize("first", [True, False])
def test_records_may_be_made_inside_and_outside_inference_mode(first):
    tracker = StatsTracker()
    for inside in (first, not first, first):
        with torch.inference_mode(inside):
            tracker.denominator(valid=torch.ones(2, dtype=torch.bool))
            tracker.stat("valid", a=torch.tensor([1.0, 3.0]), b=torch.zeros(2), c=torch.zeros(2))
            tracker.scalar(loss=torch.tensor(4.0))
    with torch.inference_mode(not first):
        values = tracker.export(reset=False)
    assert (values["valid"], values["a/avg"], values["loss"], values["loss__count"]) == (6.0, 2.0, 4.0, 3.0)
    assert tracker.export() == values


def test_the_default_device_and_dtype_do_not_matter():
    tracker = StatsTracker()
    values, mask = torch.tensor([1.0, 3.0]), torch.ones(2, dtype=torch.bool)
    with torch.device("meta"):
        for name in "abc":
            tracker.stat_compact(mask, **{name: values})
        tracker.scalar(lr=0.5)
        assert tracker.export(key="b")["b/avg"] == 2.0
        tracker.stat_compact(mask, d=values)
        values = tracker.export()
    assert (values["lr"], values["a/max"], values["c/min"], values["d/avg"]) == (0.5, 3.0, 1.0, 2.0)


def tensor_bytes(root):
    """Bytes of the distinct tensor storages that can be reached from an object."""
    storages, seen, queue = {}, set(), [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif type(item).__module__.startswith("areal_callbacks") or isinstance(item, dict | list | tuple):
            queue.extend(gc.get_referents(item))
    return sum(storages.values())


@pytest.mark.parametrize("metrics", [1, 2, 3, 5, 9, 100, 513])
def test_at_most_64_bytes_of_tensor_are_retained_per_metric(metrics):
    tracker = StatsTracker()
    for batch in range(3):
        mask = torch.ones(100 * (batch + 1), dtype=torch.bool)
        tracker.stat_compact(mask, **{f"m{index}": torch.rand(len(mask)) for index in range(metrics)})
    assert 32 * metrics <= tensor_bytes(tracker) <= 64 * metrics


def test_beside_its_count_a_denominator_retains_its_latest_mask():
    tracker = StatsTracker()
    for length in (50, 1000, 80):
        tracker.denominator(valid=torch.ones(length, dtype=torch.bool))
        tracker.stat("valid", x=torch.rand(length))
    assert tensor_bytes(tracker) <= 80 + 2 * 64


def test_many_threads_lose_nothing_while_another_exports():
    tracker, exports, done = StatsTracker(), [], threading.Event()

    def work(_):
        for _ in range(200):
            tracker.scalar(x=1.0)
            tracker.stat_compact(torch.ones(2, dtype=torch.bool), ReduceType.SUM, y=torch.ones(2))

    def drain():
        while not done.is_set():
            exports.append(tracker.export())

    exporter = threading.Thread(target=drain)
    exporter.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    done.set()
    exporter.join()
    exports.append(tracker.export())
    assert sum(export.get("x__count", 0.0) for export in exports) == 800.0
    assert sum(export.get("y", 0.0) for export in exports) == 1600.0


def test_a_random_mixture_gives_what_numpy_gives():
    generator = np.random.default_rng(0)
    tracker, values, masks = StatsTracker(), [], []
    for size in (1, 7, 64, 1000):
        batch = generator.normal(size=(size, 3)) * 10.0 ** generator.integers(-3, 4)
        mask = generator.random((size, 3)) < 0.7
        tracker.denominator(valid=torch.from_numpy(mask))
        tracker.stat("valid", x=torch.from_numpy(batch))
        values.append(batch.ravel())
        masks.append(mask.ravel())
    chosen = np.concatenate(values)[np.concatenate(masks)]
    exported = tracker.export()
    assert exported["valid"] == chosen.size
    assert exported["x/avg"] == pytest.approx(chosen.mean(), rel=1e-12)
    assert (exported["x/min"], exported["x/max"]) == (chosen.min(), chosen.max())
