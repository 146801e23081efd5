"""The documentation says what the code does: keys, defaults, links and snippets."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import areal_callbacks
from areal_callbacks import MetricsConfig, MetricsSession, stats_tracker
from areal_callbacks.config.sections import Section, Switch, hints
from areal_callbacks.monitors.moe_balance.monitor import MoEBalanceMonitor
from areal_callbacks.monitors.throughput.interval import Interval
from areal_callbacks.ppo.batch import PolicyBatch
from areal_callbacks.ppo.clip import Clip
from areal_callbacks.ppo.diagnostics import PolicyDiagnostics
from areal_callbacks.ppo.update import PolicyUpdate
from areal_callbacks.stats_tracker import ReduceType

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MEASURED = ("Throughput", "MoE balance", "PPO diagnostics")


def _section(page: str, heading: str) -> str:
    text = (ROOT / page).read_text()
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no section {heading!r}"
    return found[1]


def _rows(text: str) -> list[list[str]]:
    """The cells of all tables, without their heads."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def _keys(rows: list[list[str]]) -> list[str]:
    """What the first cell of each row names; ``{a,b}`` stands for both."""
    return [
        key for row in rows for name in re.findall(r"`([^`]+)`", row[0].split(" from ")[0]) for key in _expanded(name)
    ]


def _expanded(name: str) -> list[str]:
    parts = [part.split(",") for part in re.split(r"[{}]", name)]
    return ["".join(choice) for choice in itertools.product(*parts)]


def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(re.escape(key).replace("<id>", r"\d+"))


class Ear(torch.nn.Module):
    """Takes sound, like a model of Transformers."""

    base_model_prefix, config = "ear", None

    def forward(self, input_values: torch.Tensor) -> torch.Tensor:
        return input_values


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Two steps of a real model with everything switched on and something recorded in every way."""
    torch.manual_seed(0)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    size = {"vocab_size": 32, "hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(num_hidden_layers=2, **size, **experts))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flops = {"peak_flops": 1e12, "fallback": "active_parameters"}
    model.config.model_type = "unknown"  # so that the fallback is taken
    options: dict[str, Any] = {"moe_balance": {"extended": True}, "flops": flops, "report": False}
    with MetricsSession(output_dir=tmp_path_factory.mktemp("run"), **options) as session:
        session.attach(model, optimizer)
        session.attach(ear := Ear())
        session.expect_optimizer(may_skip=True)
        for _ in range(2):
            session.begin()
            tokens = torch.randint(32, (2, 8))
            model(input_ids=tokens, labels=tokens).loss.backward()
            ear(torch.ones(2, 5))
            optimizer.step()
            session.end()
        with stats_tracker.record_timing("generation"):
            mask = torch.tensor([True, False])
        stats_tracker.scalar(reward=0.5)
        stats_tracker.denominator(n_valid=mask)
        stats_tracker.stat(denominator="n_valid", loss=torch.ones(2))
        stats_tracker.stat(denominator="n_valid", reduce_type=ReduceType.SUM, clipped=torch.ones(2))
        _diagnose_a_policy()
        return dict(session.export(2).metrics)


def _diagnose_a_policy() -> None:
    """A batch of four sequences with every advantage sign and age, and its update."""
    logp = -torch.rand(4, 6)
    mask, advantages = torch.ones(4, 6, dtype=torch.bool), torch.tensor([1.0, -1.0, 0.0, 2.0])
    per_token = {
        "kl_rewards": logp,
        "final_reward": logp,
        "attention_mask": mask,
        "versions": torch.arange(6).repeat(4, 1),
    }
    per_sequence = {
        "task_reward": advantages,
        "prompt_len": torch.ones(4),
        "seq_len": torch.ones(4),
        "no_eos": mask[:, 0],
    }
    diagnostics = PolicyDiagnostics()
    mismatch = {"trainer_logp": logp, "rollout_logp": logp + 0.1, "advantages": advantages, "current_version": 4}
    diagnostics.observe_rollout_batch(PolicyBatch(mask, **mismatch, **per_token, **per_sequence))
    diagnostics.observe_update(PolicyUpdate(mask, logp, logp + 0.1, advantages=advantages, entropy=-logp, clip=Clip()))


RECORDED = {
    "timeperf/<name>": "generation",
    "<name> from scalar": "reward",
    "<name> from denominator": "n_valid",
    "<name>/avg": "loss",
    "<name>/min": "loss",
    "<name>/max": "loss",
    "<name> from stat": "clipped",
}


def test_the_metrics_page_lists_exactly_what_a_run_exports(exported: dict[str, float]) -> None:
    documented = [_pattern(key) for name in MEASURED for key in _keys(_rows(_section("docs/metrics.md", name)))]
    recorded = {key.split(" from ")[0].replace("<name>", name) for key, name in RECORDED.items()}
    undocumented = {key for key in exported if not any(pattern.fullmatch(key) for pattern in documented)}
    assert undocumented == recorded
    assert [pattern.pattern for pattern in documented if not any(map(pattern.fullmatch, exported))] == []


def test_the_metrics_page_lists_every_way_of_recording() -> None:
    documented = _keys(_rows(_section("docs/metrics.md", "What you record")))
    assert sorted(documented) == sorted(key.split(" from ")[0] for key in RECORDED)


@pytest.mark.parametrize(("family", "heading"), [(Interval, "Throughput"), (MoEBalanceMonitor, "MoE balance")])
def test_the_table_beside_the_code_is_that_of_the_page(family: type, heading: str) -> None:
    in_docstring = re.findall(r"^ +((?:train_perf|timeperf|moe_balance)/\S+)", family.__doc__ or "", re.MULTILINE)
    in_page = _keys(_rows(_section("docs/metrics.md", heading)))
    assert len(in_docstring) == len(in_page)
    for mine, key in zip(in_docstring, in_page):
        assert key == mine or (mine.endswith("…") and key.startswith(mine[:-1]))


def test_the_readme_names_documented_metrics_only() -> None:
    documented = {key for name in MEASURED for key in _keys(_rows(_section("docs/metrics.md", name)))}
    named = set(re.findall(r"`((?:train_perf|moe_balance)/[^`*]+)`", (ROOT / "README.md").read_text()))
    assert named
    assert named <= documented


def test_the_configuration_page_lists_every_key_with_its_default() -> None:
    rows = _rows((ROOT / "docs/configuration.md").read_text()) + _rows(_section("docs/trackers.md", "Keys"))
    assert {row[0].strip("`"): row[1].strip("`") for row in rows} == dict(_defaults(MetricsConfig))
    assert len(rows) == len(dict(_defaults(MetricsConfig)))


def _defaults(section: type[Section], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key → default as YAML would hold it; a switch that is on is ``on``."""
    defaults = {field.name: field.default for field in fields(section)}
    for name, hint in hints(section).items():
        default: Any = defaults[name]
        is_switch = isinstance(default, Switch)
        yield f"{prefix}{name}", "on" if is_switch and default.enabled else json.dumps(default)
        for inner in (hint, *get_args(hint)):
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from _defaults(inner, f"{prefix}{name}.")


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in _anchors(file), f"{page.name} links to {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # by megatron.core
@pytest.mark.filterwarnings("ignore::UserWarning:megatron")  # Apex is not there
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_snippets_are_python_and_import_what_is_there(page: Path) -> None:
    for block in _blocks(page, "python"):
        for node in ast.walk(compile(block, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("areal_callbacks"):
                named = {alias.name for alias in node.names}
                assert [
                    name for name in named - _names_of(node.module or "") if not _exists(f"{node.module}.{name}")
                ] == []


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _names_of(module: str) -> set[str]:
    """What a module defines, read from its source: importing every framework here would be slow and noisy."""
    if module == "areal_callbacks":
        return set(areal_callbacks.__all__)
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"there is no {module}"
    assert spec.origin is not None
    names = set()
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configuration_snippets_are_valid(page: Path) -> None:
    for block in _blocks(page, "yaml"):
        document = yaml.safe_load(block)
        MetricsConfig.make(document.get("areal_callbacks", document))


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([^)#/]+\.md)\)", (ROOT / "docs/index.md").read_text()))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
