"""Lightning's command line, which reads the signatures of the Trainer and of its callbacks with jsonargparse."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from support.readback import messages
from support.tiny_lightning import metrics_rows
from support.tiny_words import ROWS, WIDTH, Rows, Words, weights_of
from torch.optim import SGD
from torch.utils.data import DataLoader

from areal_callbacks.integrations.lightning import AReaLMetricsCallback
from areal_callbacks.run.autoload import observe_frameworks, stop_observing

jsonargparse = pytest.importorskip("jsonargparse")


class Net(LightningModule):
    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.words, self.rate = Words(), rate

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.words(**batch)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), self.rate)


class Data(LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(Rows(), 2)


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AREAL_CALLBACKS", '{"report": false}')
    observe_frameworks()
    yield
    stop_observing()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The command line seeds and says so."""
    logger = logging.getLogger("lightning.fabric")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def fit(folder: Path, *arguments: str) -> LightningCLI:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    line = [f"--trainer.{name}=false" for name in quiet]
    line += [f"--trainer.default_root_dir={folder}", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
    return LightningCLI(Net, Data, args=["fit", *line, "--model.rate=0.25", *arguments])


def check(host: LightningCLI, folder: Path, expected: list[float]) -> AReaLMetricsCallback:
    assert weights_of(host.model) == expected
    rows = [record.metrics for record in metrics_rows(folder)]
    assert rows[-1]["train_perf/total_tokens"] == ROWS * WIDTH
    (callback,) = [one for one in host.trainer.callbacks if isinstance(one, AReaLMetricsCallback)]
    return callback


@pytest.fixture
def expected(tmp_path: Path) -> list[float]:
    return weights_of(fit(tmp_path / "without").model)


OURS = "areal_callbacks.integrations.lightning.AReaLMetricsCallback"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--trainer.callbacks.every=3", "--trainer.callbacks.report=false"],
        ["--trainer.callbacks.config={every: 3, report: false}"],
    ],
    ids=["options", "config"],
)
def test_the_callback_on_the_command_line(arguments: list[str], expected: list[float], tmp_path: Path) -> None:
    host = fit(tmp_path / "with", f"--trainer.callbacks={OURS}", *arguments)
    assert check(host, tmp_path / "with", expected).config.every == 3


def test_the_callback_in_a_file(expected: list[float], tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(
        f"trainer:\n  callbacks:\n  - class_path: {OURS}\n    init_args:\n      every: 3\n      report: false\n"
        "      moe_balance: {extended: true}\n"
    )
    host = fit(tmp_path / "with", f"--config={tmp_path / 'ours.yaml'}")
    config = check(host, tmp_path / "with", expected).config
    assert (config.every, config.moe_balance.extended) == (3, True)


@pytest.mark.parametrize("name", ["AReaLMetricsCallback", "AReaLFabricCallback"])
def test_options_have_types_for_a_parser(name: str) -> None:
    path = f"areal_callbacks.integrations.lightning.{name}"
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument(
        "--callback", type=getattr(importlib.import_module("areal_callbacks.integrations.lightning"), name)
    )
    given = {"class_path": path, "init_args": {"every": 1, "moe_balance": {"extended": True}, "output_dir": "x"}}
    config = parser.instantiate(parser.parse_object({"callback": given})).callback.config
    assert (config.every, config.moe_balance.extended, config.output_dir) == (1, True, "x")
    with pytest.raises(jsonargparse.ArgumentError, match="evry"):
        parser.parse_object({"callback": {"class_path": path, "init_args": {"evry": 1}}})


@pytest.mark.usefixtures("observed")
def test_the_command_line_while_its_trainer_is_observed(
    expected: list[float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ``__init__`` is wrapped then."""
    host = fit(tmp_path / "with", "--trainer.log_every_n_steps=3")
    check(host, tmp_path / "with", expected)
    assert host.trainer.log_every_n_steps == 3
    assert messages(caplog) == []


@pytest.mark.usefixtures("observed")
def test_a_parser_finds_the_same_arguments_while_the_trainer_is_observed() -> None:
    def arguments_of_the_trainer() -> list[str]:
        parser = jsonargparse.ArgumentParser()
        return sorted(parser.add_class_arguments(Trainer, "trainer"))

    while_observed = arguments_of_the_trainer()
    stop_observing()
    assert while_observed == arguments_of_the_trainer()
    assert "trainer.max_epochs" in while_observed
