"""A small Qwen3-MoE trained as a byte-level language model with Lightning and one callback.

    python examples/lightning_moe.py

No network, no account.
"""

from __future__ import annotations

import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from areal_callbacks.examples.byte_text import PAD, VOCABULARY, ByteText
from areal_callbacks.integrations.lightning import AReaLMetricsCallback


class LanguageModel(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                vocab_size=VOCABULARY,
                pad_token_id=PAD,
                hidden_size=64,
                head_dim=16,
                num_attention_heads=4,
                num_key_value_heads=2,
                num_hidden_layers=4,
                num_experts=8,
                num_experts_per_tok=2,
                moe_intermediate_size=64,
            )
        )

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.model(**batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="lightning_output", help="folder of the results (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()

    pl.seed_everything(0)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        accumulate_grad_batches=2,
        val_check_interval=options.steps,
        log_every_n_steps=5,
        logger=CSVLogger(options.output),
        callbacks=[AReaLMetricsCallback()],
    )
    training = DataLoader(ByteText("train", rows=16 * options.steps), batch_size=8)
    trainer.fit(LanguageModel(), training, DataLoader(ByteText("eval", rows=32), batch_size=8))


if __name__ == "__main__":
    main()
