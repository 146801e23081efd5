"""A training whose host logs to MLflow or Comet, in a process of its own: their clients change other modules.

python -m support.report_guest_runs transformers|lightning|comet FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

STEPS = 4


def train_with_transformers(folder: Path, tracker: str = "mlflow") -> None:
    from support.tiny_trainer import Sequences, make_trainer

    from areal_callbacks.integrations.transformers import AReaLMetricsCallback

    callbacks = [AReaLMetricsCallback(output_dir=folder / "ours")]
    make_trainer(folder / "out", callbacks=callbacks, data=Sequences(4 * STEPS), report_to=[tracker]).train()


def train_with_comet(folder: Path) -> None:
    import comet_ml  # it insists on being the first

    train_with_transformers(folder, "comet_ml")
    experiment = comet_ml.get_running_experiment()
    assert experiment is not None, "the host's own to end"
    experiment.end()


def train_with_lightning(folder: Path) -> None:
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import MLFlowLogger
    from support.report_guest_module import Module
    from support.tiny_trainer import Sequences
    from torch.utils.data import DataLoader

    from areal_callbacks.integrations.lightning import AReaLMetricsCallback

    trainer = Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        log_every_n_steps=1,
        logger=MLFlowLogger(tracking_uri=(folder / "mlruns").as_uri()),
        callbacks=[AReaLMetricsCallback(output_dir=str(folder / "ours"))],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(Sequences(2 * STEPS), batch_size=2))


if __name__ == "__main__":
    trainings = {"transformers": train_with_transformers, "lightning": train_with_lightning, "comet": train_with_comet}
    trainings[sys.argv[1]](Path(sys.argv[2]))
