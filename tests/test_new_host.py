"""The page for those who add a host: its code runs as it stands, and its integration passes what every host passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hosts import rows
from support.tiny_trainer import moe_model
from support.wraps import find_wraps
from torch.utils.data import DataLoader

PAGE = Path(__file__).parents[1] / "docs" / "new_host.md"
STEPS = 5


class Page:
    """The page's code blocks, run in one namespace with a model, an optimizer, batches and a folder."""

    def __init__(self, folder: Path) -> None:
        self.blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        model = moe_model()
        self.names: dict[str, Any] = {
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), 0.1),
            "batches": list(DataLoader(rows(), 2))[:STEPS],
            "folder": folder,
        }

    def run(self, *blocks: str) -> list[dict[str, Any]]:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), self.names)
        return self.names["trainer"].rows

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.names["model"].parameters()])


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path)


def test_the_page_has_a_trainer_an_integration_of_about_a_hundred_lines_and_its_use(page):
    assert len(page.blocks) == 3
    assert len(page.blocks[1].splitlines()) <= 100


def test_its_code_measures_what_was_trained(page, tmp_path):
    table = page.run(*page.blocks)
    lengths = [int(batch["attention_mask"].sum()) for batch in page.names["batches"]]
    assert [row["step"] for row in table] == [2, 4, 5]
    assert [row["train_perf/tokens"] for row in table] == [sum(lengths[:2]), sum(lengths[2:4]), lengths[4]]
    assert [row["train_perf/optimizer_steps"] for row in table] == [2, 2, 1]
    assert "loss" in table[0]
    assert table[0]["moe_balance/max_over_ideal_max"] >= 1
    assert (tmp_path / "metrics.jsonl").exists()


def test_it_leaves_nothing_behind_and_changes_no_weight(page, tmp_path):
    plain = Page(tmp_path / "plain")
    plain.run(plain.blocks[0], "trainer = Trainer(model, optimizer)\ntrainer.fit(batches)")
    page.run(*page.blocks)
    assert torch.equal(page.weights(), plain.weights())
    trainer, model = page.names["trainer"], page.names["model"]
    assert not find_wraps(trainer)
    assert not [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]


def test_an_exception_of_the_training_passes_and_cleans_up(page):
    page.names["batches"] = [*page.names["batches"][:2], {"input_ids": "no batch"}]
    with pytest.raises(TypeError, match="embedding"):
        page.run(*page.blocks)
    assert not find_wraps(page.names["trainer"])
