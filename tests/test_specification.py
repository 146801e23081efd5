"""The pages that hold this package to AReaL name files and tests that exist; and sentences that no part tests alone."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.ppo.staleness import log_version_stats
from areal_callbacks.ppo.train_infer import log_train_inference_stats

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, TESTS = ROOT / "areal_callbacks", ROOT / "tests"
PAGES = ["specification.md", "coming_from_areal.md"]


def rows(page):
    """The cells of all tables of a page, without their heads."""
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def functions(path):
    return [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]


@pytest.fixture(scope="module")
def tests_of():
    """File below tests/ → its test functions."""
    return {path.relative_to(TESTS).as_posix(): functions(path) for path in TESTS.rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES)
def test_every_line_names_tests_that_exist(page, tests_of):
    known = Counter(name for names in tests_of.values() for name in names)
    for *cells, tests in rows(page):
        if tests == "–":
            assert cells[1].startswith(("explanation, ", "advice, ")), cells
            continue
        named = re.findall(r"`([^`]+)`", tests)
        assert named, cells
        for test in named:
            file, _, name = test.rpartition("::")
            if file:
                assert name in tests_of[file], test
            else:
                assert known[name] == 1, f"{test}: {known[name]} tests of that name"


def test_every_sentence_says_where():
    for sentence, places, _ in rows("specification.md"):
        paths = re.findall(r"`([^`]+)`", places)
        assert paths, sentence
        assert [path for path in paths if not any((folder / path).exists() for folder in (PACKAGE, ROOT))] == []


def test_no_sentence_is_twice():
    sentences = [sentence for sentence, *_ in rows("specification.md")]
    assert sentences
    assert [sentence for sentence, times in Counter(sentences).items() if times > 1] == []


TAILS = "{1.5,2,3,5,10}"
SPECIFIED = {
    "train_perf": "{tokens,seconds,tokens_per_second,estimated_flops,estimated_flops_per_second,total_tokens,"
    "total_seconds,cumulative_tokens_per_second,cumulative_estimated_flops_per_second}",
    "moe_balance/layer_<id>": "max_over_ideal",
    "ppo_actor/train_infer": "{logp_diff,logp_abs_diff,logp_diff_squared,trainer_nll,rollout_nll,kl_k1,kl_k2,kl_k3,"
    "nonfinite_logp_fraction,kl_k3_overflow_fraction}",
    "ppo_actor": "advantage_{positive,negative,zero}_fraction",
    "ppo_actor/update/version_stats": "{sample_staleness_{theta,proximal}_{avg,min,max},{stale,future}_token_fraction,"
    "n_valid_generated_tokens}",
}
"""What the page *Metrics Tracking* of AReaL calls its metrics."""


def leaves(pattern):
    """The names of a pattern without the braces of its parts: what a sentence about them has to hold."""
    return [name for name in re.split(r"[{},]+", pattern) if len(name) > 2]


@pytest.mark.parametrize("prefix", SPECIFIED)
def test_every_name_of_the_specification_is_on_the_page(prefix):
    """That all are exported, and under these names, the tests of ``docs/metrics.md`` show."""
    page, metrics = ((ROOT / "docs" / name).read_text() for name in ("specification.md", "metrics.md"))
    assert f"`{prefix}" in metrics or f"`{prefix.rpartition('/')[0]}" in metrics
    for leaf in leaves(SPECIFIED[prefix]):
        assert leaf in page, leaf
        assert leaf in metrics, leaf


IN_EXAMPLES_ONLY = {
    *("all_raw_stats", "all_stats", "arun_episode", "data_parallel_group", "dp_group", "epoch_step", "eval_rollout"),
    *("export_stats", "extra_kwargs", "fsdp_engine", "get_rank", "grad_norm", "gsm8k_grpo", "is_initialized"),
    *("kl_rewards", "learning_rate", "loss_mask", "loss_tensor", "max_tokens", "num_turns", "ones_like"),
    *("prepare_batch", "prompt_str", "raw_stats", "reward_score", "rl_trainer", "rollout_controller", "run_001"),
    *("seq_len", "summary_writer", "task_data", "task_reward", "n_seqs", "n_valid_tokens", "add_scalar", "all_reduce"),
    *("active_parameters", "my_model_factory", "my_model_type", "num_attention_heads", "num_hidden_layers"),
    *("sequence_length", "total_training_flops", "collect_samples", "collective_rpc", "compute_rewards"),
    "export_and_commit_stats",
}
"""Names of AReaL's own code in the examples, of which no sentence speaks."""
PARAPHRASED = {
    "L_i": "the sum over sequences",
    "Qwen3_5MoeTopKRouter": "the routers of the Transformers",
    "current_version": "the interpolation of the loss",
    "p_rollout": "log p of the rollout",
    "p_trainer": "log p of the trainer",
    "query_heads": "2 · heads",
    "train_batch": "all training",
    "version_stats": "its metrics",
}


def test_every_name_in_the_specification_is_on_the_page_or_said_otherwise():
    specification = ROOT.parent / "shared/spec/areal_metrics_tracking.txt"
    if not specification.exists():
        pytest.skip("the specification is not beside this checkout")
    names = set(re.findall(r"[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+", specification.read_text()))
    page = (ROOT / "docs/specification.md").read_text()
    missing = {name for name in names if name not in page and not name.startswith("ratio_outside_")}
    assert missing <= IN_EXAMPLES_ONLY | PARAPHRASED.keys()


def test_the_tails_have_the_specified_thresholds():
    assert f"`ratio_outside_{TAILS}`" in (ROOT / "docs/specification.md").read_text()
    assert f"`ppo_actor/train_infer/ratio_outside_{TAILS}`" in (ROOT / "docs/metrics.md").read_text()


# -- sentences


def test_the_standard_deviation_of_absolute_differences_follows():
    generator = np.random.default_rng(0)
    trainer, rollout = generator.normal(-2, 1, size=(2, 3, 50))
    tracker = StatsTracker()
    mask = torch.ones(3, 50, dtype=torch.bool)
    log_train_inference_stats(torch.from_numpy(trainer), torch.from_numpy(rollout), mask, tracker)
    metrics = tracker.export()
    squared = metrics["ppo_actor/train_infer/logp_diff_squared"]
    mean = metrics["ppo_actor/train_infer/logp_abs_diff/avg"]
    assert max(0.0, squared - mean**2) ** 0.5 == pytest.approx(np.abs(trainer - rollout).std(), rel=1e-12)


def test_trajectories_of_separate_updates_are_counted_again():
    tracker, versions = StatsTracker(), torch.tensor([[-1, 3, 4]])
    for current in (4, 5):
        log_version_stats(versions, torch.ones_like(versions), current, tracker)
    scope = "ppo_actor/update/version_stats/"
    found = {name.removeprefix(scope): value for name, value in tracker.export().items()}
    assert found["n_valid_generated_tokens"] == 4.0
    assert found["sample_staleness_theta_avg"] == 1.0  # ages 1, 0 and then 2, 1
