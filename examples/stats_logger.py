"""A plain PyTorch loop that commits its statistics to every tracker that is installed, without an account.

    python examples/stats_logger.py

Everything stays on this machine: W&B and SwanLab run offline, Trackio and TensorBoard write local files.
"""

from __future__ import annotations

import argparse
import importlib.util

import torch
from torch import nn

from areal_callbacks import StatsLogger, stats_tracker
from areal_callbacks.examples.byte_text import VOCABULARY, ByteText


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="logs", help="folder of the results (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()

    sections = {
        "wandb": {"mode": "offline"},
        "swanlab": {"mode": "offline"},
        "trackio": {},
        "tensorboard": {"path": f"{options.output}/tensorboard"},
    }
    installed = {name: section for name, section in sections.items() if importlib.util.find_spec(name)}
    names = {"experiment_name": "byte_bigrams", "trial_name": "sgd"}

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = ByteText(rows=4 * options.steps, length=128)

    with StatsLogger({**names, "fileroot": options.output, **installed}, run_config={"lr": 1e-2}) as logger:
        for step in range(options.steps):
            rows = [text[4 * step + row] for row in range(4)]
            tokens = torch.stack([row["input_ids"] for row in rows])
            targets = torch.stack([row["labels"] for row in rows])[:, 1:]
            with stats_tracker.record_timing("train_step"):
                losses = nn.functional.cross_entropy(model(tokens[:, :-1]).mT, targets, reduction="none")
                optimizer.zero_grad()
                losses[targets >= 0].mean().backward()
                optimizer.step()
            stats_tracker.denominator(n_valid_tokens=targets >= 0)
            stats_tracker.stat("n_valid_tokens", loss=losses)  # loss/avg, loss/min, loss/max over real tokens
            logger.commit(0, step, step, stats_tracker.export_all())


if __name__ == "__main__":
    main()
