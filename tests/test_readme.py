"""The snippets of the README as they stand there, in the surroundings that a reader has."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator
from support.recount import written_sum
from support.short_training import COMMON
from support.tiny_lightning import Module, loader, tokens
from support.tiny_trainer import Sequences, arguments, fresh_accelerator, moe_model
from torch.utils.data import DataLoader
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer

from areal_callbacks import stats_tracker
from areal_callbacks.examples.grpo_mismatch import correct_digits, make_policy, make_prompts, make_tokenizer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MEGATRON_LM = ROOT / "tests" / "support" / "megatron_lm"

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, about themselves


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    fresh_accelerator()
    with torch._dynamo.config.patch(disable=True):
        yield
    fresh_accelerator()


def run_snippet(heading: str, **surroundings: Any) -> dict[str, Any]:
    """The first Python block after the words in bold, run with these names; returns all names."""
    block = re.search(rf"^\*\*{re.escape(heading)}\*\*.*?^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert block is not None, f"the README has no snippet for {heading}"
    exec(compile(block[1], heading, "exec"), surroundings)
    return surroundings


def test_every_snippet_is_run_here() -> None:
    source = Path(__file__).read_text()
    for heading in re.findall(r"^\*\*([^*]+)\*\*", README, re.MULTILINE):
        assert re.search(rf'run_snippet\(\s*"{re.escape(heading)}"', source), heading


def test_hugging_face_trainer(tmp_path: Path) -> None:
    data = Sequences()
    run_snippet("Hugging Face Trainer", Trainer=Trainer, model=moe_model(), args=arguments(tmp_path), dataset=data)
    assert written_sum(tmp_path) == sum(int(row["attention_mask"].sum()) for row in data)


def test_trl(tmp_path: Path) -> None:
    options = {**COMMON, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 4}
    args = GRPOConfig(output_dir=str(tmp_path), **options)
    trainer = functools.partial(GRPOTrainer, args=args, processing_class=make_tokenizer())
    names = run_snippet(
        "TRL", GRPOTrainer=trainer, model=make_policy(), reward=correct_digits, dataset=make_prompts(16)
    )
    names["trainer"].train()
    assert written_sum(tmp_path) > 0
    assert written_sum(tmp_path, "ppo_actor/n_valid_tokens") > 0


def test_lightning_and_fabric(tmp_path: Path) -> None:
    names = run_snippet("Lightning", lightning=lightning)
    assert names["fabric"]._callbacks
    trainer = names["trainer"]
    trainer.fit_loop.max_epochs = 1
    trainer.fit(Module(), loader())
    assert written_sum(tmp_path) == tokens()


def test_accelerate(tmp_path: Path) -> None:
    names = run_snippet("Accelerate", Accelerator=Accelerator)
    accelerator, model = names["accelerator"], moe_model()
    model, optimizer, batches = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader())
    for batch in batches:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
    accelerator.end_training()
    assert written_sum(tmp_path) == tokens()


def test_megatron_lm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(MEGATRON_LM)
    training = pytest.importorskip("megatron.training.training")
    plain = dict(vars(training))
    run_snippet("Megatron-LM")
    try:
        assert {name for name, value in vars(training).items() if value is not plain.get(name)} >= {"train"}
    finally:
        from areal_callbacks.integrations.megatron import uninstall

        uninstall()


def test_a_loop_of_your_own(tmp_path: Path) -> None:
    model, logged = moe_model(), list[dict[str, float]]()
    names = {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "log": logged.append}
    run_snippet("A loop of your own", loader=DataLoader(Sequences(), 2), **names)
    assert len(logged) == 1
    assert written_sum(tmp_path) == sum(int(row["attention_mask"].sum()) for row in Sequences())


def test_your_own_numbers() -> None:
    stats_tracker.collect_all()
    run_snippet("Your own numbers", mask=torch.tensor([True, False, True]), advantages=torch.tensor([1.0, 9.0, 2.0]))
    numbers = stats_tracker.export_all()
    assert numbers["ppo_actor/advantages/avg"] == 1.5
    assert numbers["ppo_actor/n_valid_tokens"] == 2
    assert numbers["rollout/reward"] == 0.5
    assert numbers["timeperf/rollout"] >= 0
