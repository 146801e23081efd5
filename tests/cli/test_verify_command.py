"""``areal-callbacks verify`` on scripts, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

IMPORTS = """
import sys, torch
from torch import nn
"""

LOOP = """
from areal_callbacks.integrations.fsdp import track

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4)

    def forward(self, input_ids, attention_mask):
        return self.table(input_ids).square().sum()

model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])
with track(model, optimizer, output_dir=sys.argv[1], report=False) as metrics:
    for step in range(10):
        with metrics.step():
            loss = model(input_ids=ids, attention_mask=(ids > 0).long())
            loss.backward()
            optimizer.step()
print("the script has ended")
"""

TRAINER = """
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments

sizes = dict(vocab_size=32, hidden_size=16, head_dim=8, num_hidden_layers=2, num_attention_heads=2)
experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, num_key_value_heads=1)
model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts))
row = dict(input_ids=[5, 6, 7, 0], attention_mask=[1, 1, 1, 0], labels=[5, 6, 7, -100])
args = TrainingArguments(sys.argv[1], max_steps=2, per_device_train_batch_size=2, logging_steps=1, report_to="none",
                         use_cpu=True, save_strategy="no", disable_tqdm=True)
Trainer(model, args, train_dataset=[row] * 4).train()
"""


ACCELERATE = """
from accelerate import Accelerator

model = nn.Sequential(nn.Embedding(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
loader = torch.utils.data.DataLoader(torch.arange(48).remainder(16).view(12, 4), 2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for ids in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(ids).square().sum())
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
"""


def test_an_accelerate_loop_and_json_on_the_last_line(tmp_path: Path) -> None:
    done = verify(tmp_path, ACCELERATE, "--steps", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"][0] == {"name": "tokens", "ours": 2 * 2 * 8, "recount": 2 * 2 * 8, "same": True}


def verify(folder: Path, text: str, *options: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(IMPORTS + text)
    words = ["verify", *options, "--", "python", str(script), *arguments]
    code = "from areal_callbacks.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=folder)


def table(output: str) -> dict[str, list[str]]:
    """First word of each row → its other words."""
    rows = [line.split() for line in output.splitlines() if line.startswith(("tokens", "padding", "routed"))]
    return {" ".join(row[:-3]) if row[0] == "routed," else row[0]: row[-3:] for row in rows}


def test_an_own_loop_that_is_right(tmp_path: Path) -> None:
    done = verify(tmp_path, LOOP, "--steps", "4", arguments=(str(tmp_path / "out"),))
    assert done.returncode == 0, done.stderr
    assert table(done.stdout)["tokens"] == ["20", "20", "equal"]
    assert table(done.stdout)["padding"][-1] == "12"
    assert "4 optimizer steps" in done.stdout
    assert "the script has ended" not in done.stdout


def test_a_script_that_is_shorter(tmp_path: Path) -> None:
    done = verify(tmp_path, LOOP, "--steps", "99", arguments=(str(tmp_path / "out"),))
    assert (done.returncode, table(done.stdout)["tokens"]) == (0, ["50", "50", "equal"])
    assert "the script has ended" in done.stdout


def test_a_trainer_of_transformers_as_json(tmp_path: Path) -> None:
    done = verify(tmp_path, TRAINER, "--json", arguments=(str(tmp_path),))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rows = {row["name"]: row for row in found["rows"]}
    assert (found["steps"], found["unread"]) == (2, [])
    assert (rows["tokens"]["ours"], rows["tokens"]["recount"]) == (12, 12)
    assert {name: sum(counts) for name, counts in found["routed"].items()} == {"0": 2 * 8 * 2, "1": 2 * 8 * 2}
    assert rows["routed, 0"]["same"] is True


def test_numbers_that_differ(tmp_path: Path) -> None:
    """Made to differ: the script counts every batch as a sequence of seven."""
    counted = LOOP.replace(
        "            loss.backward()", "            metrics.count_sequences([7])\n            loss.backward()"
    )
    done = verify(tmp_path, counted, arguments=(str(tmp_path / "out"),))
    assert done.returncode == 1, done.stderr
    assert table(done.stdout)["tokens"][1:] == ["15", "DIFFERS"]


def test_nothing_is_trained(tmp_path: Path) -> None:
    done = verify(tmp_path, "print('nothing')")
    assert done.returncode == 2
    assert "nothing was trained" in done.stderr


def test_a_script_that_fails_keeps_its_code(tmp_path: Path) -> None:
    assert verify(tmp_path, "sys.exit(7)").returncode == 7
    failed = verify(tmp_path, "raise RuntimeError('its own')")
    assert failed.returncode == 1
    assert "its own" in failed.stderr


RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo")
"""


def test_the_recounts_of_all_ranks_are_summed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IMPORTS + RANKS + LOOP)
    command = str(Path(sys.executable).with_name("areal-callbacks"))
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", command]
    words = ["verify", "--steps", "2", "--", str(script), str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", *launch, *words], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert table(done.stdout)["tokens"] == ["20", "20", "equal"]
