"""Every example runs, for a handful of steps, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from areal_callbacks.examples.byte_text import PAD, VOCABULARY, ByteText
from areal_callbacks.writers.jsonl import MetricsRecord, read_metrics

FOLDER = Path(__file__).parents[1] / "examples"
NOT_SCRIPTS = {"__init__.py", "byte_text.py"}


@dataclass(frozen=True)
class Example:
    """How to run one script: it writes somewhere below its working directory.

    Attributes:
        arguments: of the script.
        launcher: what comes between the Python interpreter and the script, e.g. ``-m torch.distributed.run``.
        metric: a key that its metrics.jsonl has to hold.
        most_lines: an example is read before it is run.
    """

    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    metric: str = "train_perf/tokens"
    most_lines: int = 80


EXAMPLES = {
    "accelerate_moe.py": Example(("--steps", "2")),
    "fsdp2_moe.py": Example(("--steps", "2"), ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")),
    "grpo_mismatch.py": Example(("--steps", "2"), metric="ppo_actor/train_infer/n_valid_tokens", most_lines=170),
    "hf_trainer_moe.py": Example(("--steps", "2")),
    "lightning_moe.py": Example(("--steps", "2")),
    "megatron_moe.py": Example(
        ("--steps", "2"), ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ),
    "rollout_data_flow.py": Example(("--steps", "2"), metric="rollout/num_turns"),
    "stats_logger.py": Example(("--steps", "2"), metric="n_valid_tokens"),
}


def _scripts() -> list[str]:
    return sorted(path.name for path in FOLDER.glob("*.py") if path.name not in NOT_SCRIPTS)


def test_every_script_has_a_row() -> None:
    assert sorted(EXAMPLES) == _scripts()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_it_is_short(name: str) -> None:
    assert len((FOLDER / name).read_text().splitlines()) <= EXAMPLES[name].most_lines


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_it_runs(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    command = [sys.executable, *example.launcher, str(FOLDER / name), *example.arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    values = [
        record.metrics[example.metric]
        for path in tmp_path.rglob("metrics.jsonl")
        for record in read_metrics(path)
        if isinstance(record, MetricsRecord) and example.metric in record.metrics
    ]
    assert sum(values) > 0


class TestByteText:
    """The data that the examples share."""

    def test_rows_are_whole_lines_and_padding(self) -> None:
        rows = ByteText("train", rows=50, length=256)
        assert len(rows) == 50
        masks = torch.stack([row["attention_mask"] for row in rows])
        assert masks.dtype == torch.int64
        assert 0.8 < masks.double().mean() < 1.0  # some padding
        for row in rows:
            length = int(row["attention_mask"].sum())
            assert row["attention_mask"].tolist() == [1] * length + [0] * (256 - length)
            assert row["input_ids"][length:].tolist() == [PAD] * (256 - length)
            assert row["labels"].tolist() == row["input_ids"][:length].tolist() + [-100] * (256 - length)
            assert max(row["input_ids"].tolist()) < VOCABULARY

    def test_the_text_is_the_standard_library_read_in_order(self) -> None:
        import __future__

        rows = ByteText("train", rows=10)
        text = b"".join(bytes(row["input_ids"][row["labels"] >= 0].tolist()) for row in rows)
        assert Path(__future__.__file__).read_bytes().startswith(text[:1000])

    def test_it_is_the_same_every_time(self) -> None:
        first, second = (ByteText("eval", rows=20).input_ids for _ in range(2))
        assert torch.equal(first, second)

    def test_evaluation_text_is_not_trained_on(self) -> None:
        train = {tuple(row.tolist()) for row in ByteText("train", rows=2000).input_ids}
        evaluation = {tuple(row.tolist()) for row in ByteText("eval", rows=500).input_ids}
        assert len(train & evaluation) == 0

    def test_a_long_line_is_cut(self) -> None:
        assert len(ByteText("train", rows=400, length=16)) == 400

    def test_too_many_rows_are_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"fill \d+ eval rows, not 1000000"):
            ByteText("eval", rows=1_000_000)
