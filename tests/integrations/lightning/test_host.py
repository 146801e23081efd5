"""What is read off Lightning itself, under either of its names."""

from __future__ import annotations

from support.tiny_lightning import Module, csv_rows, loader, tokens

from areal_callbacks.integrations.lightning import AReaLMetricsCallback


def test_the_other_name_of_lightning_works_too(tmp_path):
    import pytorch_lightning as other

    class Other(other.LightningModule):
        training_step = Module.training_step
        configure_optimizers = Module.configure_optimizers
        learning_rate = 0.01

        def __init__(self):
            super().__init__()
            self.model = Module().model

    host = other.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=1,
        logger=other.loggers.CSVLogger(tmp_path),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[AReaLMetricsCallback(report=False)],
    )
    host.fit(Other(), loader())
    assert sum(row["train_perf/tokens"] for row in csv_rows(tmp_path)) == tokens()
