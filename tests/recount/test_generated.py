"""Trainings that hypothesis puts together: the metrics, the recount and the answer by construction are one.

``RECOUNT_EXAMPLES`` sets how many (``make recount ARGS=2000``), ``RECOUNT_SEED`` repeats a run.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from support.generated_batches import EVERY, make_batch
from support.generated_models import make_model
from support.generated_trainings import (
    IMPOSSIBLE,
    KINDS,
    LAYOUTS,
    LAYOUTS_OF,
    STYLES,
    Composite,
    Losses,
    Training,
    calls_of,
    prepare,
    style_arguments,
)
from support.recount import Recount, loads_of, routed_of, tokens_of

from areal_callbacks.integrations.fsdp import track

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

Difference = tuple[Training, str, tuple[Any, ...]]

EXAMPLES = int(os.environ.get("RECOUNT_EXAMPLES", "60"))
SEED = int(os.environ.get("RECOUNT_SEED", random.SystemRandom().randrange(10**6)))


def draw_training(chance: random.Random) -> Training:
    """Every part with the same chance; the compiler, which is slow, a tenth of it."""
    model = chance.choice(sorted(LAYOUTS))
    kinds = [kind for kind in KINDS if (model, kind) not in IMPOSSIBLE]
    (kind,) = chance.choices(kinds, [0.1 if kind == "compiled" else 1 for kind in kinds])
    layouts = [name for name in LAYOUTS[model] if name in LAYOUTS_OF.get(kind, EVERY)]
    composite = kind == "both" or chance.random() < 0.5
    style = chance.choice(STYLES) if composite else "keyword"
    rows = tuple(tuple(chance.randint(2, 5) for _ in range(chance.randint(1, 3))) for _ in range(chance.randint(1, 3)))
    return Training(
        model, chance.choice(layouts), style, kind, composite, rows, chance.randint(0, 3), chance.randint(1, 2)
    )


trainings = st.randoms(use_true_random=True).map(draw_training)


def flops_of_one(length: int) -> int:
    """So that the sum over sequences tells their number and their squares apart."""
    return length * length * 10**6 + 1


def train(training: Training, root: Any, call: Any, metrics: Any) -> None:
    batch = make_batch(training.layout, [list(row) for row in training.rows], training.pads)
    optimizer = torch.optim.SGD(root.parameters(), lr=0.01)
    for _ in range(training.steps):
        with metrics.step() if metrics else contextlib.nullcontext():
            args, kwargs = style_arguments(training.style, batch.arguments)
            sum(call(*args, **kwargs) for _ in range(calls_of(training.kind))).backward()
            optimizer.step()
            optimizer.zero_grad()


def build(training: Training) -> tuple[Any, Any]:
    """What is tracked and what the loop calls."""
    model, teacher = prepare(make_model(training.model), training.kind), make_model(training.model)
    if training.composite:
        root = Composite(model, teacher, training.kind)
        return root, root
    losses = getattr(Losses(model, teacher), training.kind)
    return model, lambda **batch: losses(batch)


def measure(training: Training, folder: Path) -> dict[str, tuple[Any, ...]]:
    """Name of a number → the metrics, the recount and the answer by construction."""
    root, call = build(training)
    estimator = {"flops_estimator": flops_of_one}
    with contextlib.ExitStack() as stack:
        is_compiled = training.kind == "compiled"  # the compiler gives way to the recount: a twin of its own
        recount = stack.enter_context(Recount(root)) if not is_compiled else None
        if is_compiled:
            root.compile(backend="aot_eager")
        metrics = stack.enter_context(track(root, output_dir=str(folder), report=False, **estimator))
        train(training, root, call, metrics)
        export = metrics.export(training.steps)
    if recount is None:
        root, call = build(training)
        with Recount(root) as recount:
            train(training, root, call, None)
    return compare(training, export, recount.totals)


def compare(training: Training, export: Any, totals: Any) -> dict[str, tuple[Any, ...]]:
    batch = make_batch(training.layout, [list(row) for row in training.rows], training.pads)
    lengths = training.expected(batch)
    found: dict[str, tuple[Any, ...]] = {"tokens": (tokens_of(export), totals.tokens, sum(lengths))}
    found["unread"] = (totals.unread, [])
    if training.model != "t5":  # whose formula is one of two lengths
        flops = int(export.metrics.get("train_perf/estimated_flops", 0))
        found["flops"] = (flops, *(sum(map(flops_of_one, part)) for part in (totals.lengths, lengths)))
    positions = batch.arguments["input_ids"].numel() * KINDS[training.kind] * training.steps
    if training.model == "moe":
        sums = [sum(map(sum, loads.values())) for loads in (loads_of(export), routed_of(totals))]
        found["assignments"] = (*sums, positions * 2 * 2)
        found["routed"] = (loads_of(export), routed_of(totals))
    return found


def test_the_metrics_are_the_recount_and_what_was_built(tmp_path: Path) -> None:
    differences: list[Difference] = []
    ran = Counter[str]()

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(trainings)
    def run(training: Training) -> None:
        ran["examples"] += 1
        found = measure(training, tmp_path / str(ran["examples"]))
        differences.extend((training, name, values) for name, values in found.items() if differ(values))

    run()
    print(f"\n{ran['examples']} examples, seed {SEED}")
    assert not differences, describe(differences)


def differ(values: tuple[Any, ...]) -> bool:
    return any(value != values[0] for value in values)


def describe(differences: list[Difference]) -> str:
    """How often each part takes part in a difference, and the smallest example of every kind."""
    lines = [f"{len(differences)} differences, seed {SEED}: (metrics, recount, by construction)"]
    for part in ("model", "layout", "kind", "style"):
        counts = Counter(getattr(training, part) for training, _, _ in differences)
        lines.append(f"  {part}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    smallest: dict[tuple[str, ...], Difference] = {}
    for training, name, values in sorted(differences, key=lambda item: sum(map(sum, item[0].rows))):
        wrong = "metrics" if all(value == values[-1] for value in values[1:]) else "RECOUNT"
        smallest.setdefault((wrong, name, training.layout, training.kind), (training, name, values))
    lines += [f"  {' '.join(key)}: {values} in {training}" for key, (training, _, values) in sorted(smallest.items())]
    return "\n".join(lines)
