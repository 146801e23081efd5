"""Accelerate configs, scripts and processes for the tests of ``areal-callbacks launch``."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import yaml
from support.subprocesses import search_path
from support.tiny_trainer import Sequences, metric_records

BIN = Path(sysconfig.get_path("scripts"))
CPU = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "use_cpu": True, "num_processes": 1}

LOOP = """
import argparse, json, sys
from pathlib import Path
from support.tiny_accelerate import Loop
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--config_file")
parser.add_argument("--num_processes", type=int)
parser.add_argument("--areal_config")
parser.add_argument("--cpu", action="store_true")
parser.add_argument("rest", nargs="*")
options = parser.parse_args()
accelerator = Accelerator(project_dir=options.config_file)
loop = Loop(accelerator)
loop.run()
told = {"options": vars(options), "tokens": loop.tokens, "processes": accelerator.num_processes}
Path(f"told_{accelerator.process_index}.json").write_text(json.dumps(told))
"""  # neither logs nor ends the training

TRAINER = """
from support.tiny_trainer import Sequences, arguments, moe_model
from transformers import Trainer

trainer = Trainer(moe_model(), arguments("trainer"), train_dataset=Sequences())
trainer.train()
assert "_areal_callbacks" not in vars(trainer.accelerator)
"""

LIGHTNING = """
import lightning.pytorch as pl
import torch
from support.tiny_trainer import Sequences, moe_model

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = moe_model()

    def training_step(self, batch, index):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

pl.Trainer(
    accelerator="cpu", max_epochs=1, log_every_n_steps=1, default_root_dir="lightning", logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
).fit(Module(), torch.utils.data.DataLoader(Sequences(), 4))
"""

SCRIPTS = {"loop.py": LOOP, "hf_trainer.py": TRAINER, "with_lightning.py": LIGHTNING}

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def environment(place: Path, **more: str) -> dict[str, str]:
    """Of a child that keeps its caches and temporary files below ``place``."""
    own = {"HF_HOME": str(place / "home"), "TMPDIR": str(place / "temporary"), "PYTHONPATH": search_path()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    return {**kept, **own, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}


def launch(
    place: Path, *arguments: str, program: str = "areal-callbacks", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run ``<program> launch`` in ``place``, with further environment variables."""
    return subprocess.run(
        [str(BIN / program), "launch", *arguments],
        cwd=place,
        env=environment(place, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def write_config(place: Path, section: object = None, **keys: object) -> str:
    """The path of an Accelerate config; with a section of ours if one is given."""
    own = {} if section is None else {"areal_callbacks": section}
    (place / "accelerate.yaml").write_text(yaml.safe_dump({**CPU, **keys, **own}))
    return "accelerate.yaml"


def rows(folder: Path) -> list[dict[str, float]]:
    """What was exported below a folder."""
    return [record.metrics for record in metric_records(folder)]


def tokens(folder: Path) -> float:
    """The sum of what was exported."""
    return sum(row["train_perf/tokens"] for row in rows(folder))


def all_tokens() -> int:
    """Of the data that each script trains on."""
    return sum(int(row["attention_mask"].sum()) for row in (Sequences()[index] for index in range(16)))
