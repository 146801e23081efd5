"""The callback itself: its arguments, its checkpoints, and what a training leaves behind."""

from __future__ import annotations

import copy

import pytest
import torch
from lightning.pytorch import Callback
from support.readback import messages
from support.tiny_lightning import ROWS, TRUSTING, Module, csv_rows, loader, tokens, trainer
from support.tiny_trainer import Sequences
from support.wraps import find_wraps

from areal_callbacks.integrations.lightning import AReaLMetricsCallback


@pytest.mark.parametrize("resumes", [True, False])
def test_totals_are_restored_or_restarted_together(resumes, tmp_path):
    first = trainer(tmp_path / "a", AReaLMetricsCallback(report=False), max_epochs=1, log_every_n_steps=50)
    first.fit(Module(), loader())
    first.save_checkpoint(tmp_path / "one.ckpt")
    before = csv_rows(tmp_path / "a")[-1]
    second = trainer(tmp_path / "b", AReaLMetricsCallback(report=False, resume_totals=resumes), max_epochs=2)
    second.fit(Module(), loader(), ckpt_path=tmp_path / "one.ckpt", **TRUSTING)
    rows = [row for row in csv_rows(tmp_path / "b") if "train_perf/tokens" in row]
    assert rows[-1]["train_perf/total_tokens"] == (2 if resumes else 1) * tokens()
    own = sum(row["train_perf/seconds"] for row in rows)
    earlier = before["train_perf/total_seconds"] if resumes else 0.0
    assert rows[-1]["train_perf/total_seconds"] == pytest.approx(own + earlier)


WHOLE = {"tokens": 12, "seconds": 1.0, "flops": None, "optimizer_steps": 1}


DAMAGED = [
    {"totals": {**WHOLE, "tokens": "12"}},
    {"totals": {**WHOLE, "seconds": float("nan")}},
    {"totals": None},
    {"other": 1},
    [5],
]


@pytest.mark.parametrize("damaged", DAMAGED, ids=repr)
def test_a_checkpoint_with_damaged_totals(damaged, tmp_path, caplog):
    first = trainer(tmp_path / "a", AReaLMetricsCallback(report=False), max_epochs=1)
    first.fit(Module(), loader(4))
    first.save_checkpoint(tmp_path / "one.ckpt")
    saved = torch.load(tmp_path / "one.ckpt", weights_only=False)
    (ours,) = [name for name in saved["callbacks"] if "AReaL" in name]
    saved["callbacks"][ours] = damaged
    torch.save(saved, tmp_path / "one.ckpt")
    second = trainer(tmp_path / "b", AReaLMetricsCallback(report=False, resume_totals=True), max_epochs=2)
    second.fit(Module(), loader(4), ckpt_path=tmp_path / "one.ckpt", **TRUSTING)
    rows = [row for row in csv_rows(tmp_path / "b") if "train_perf/tokens" in row]
    assert rows[-1]["train_perf/total_tokens"] == tokens(4)
    (message,) = messages(caplog)
    assert message.startswith("the saved totals cannot be read, they restart: ")


def test_totals_start_anew_without_a_checkpoint(tmp_path):
    callback = AReaLMetricsCallback(report=False, resume_totals=True)
    for name in ("a", "b"):
        trainer(tmp_path / name, callback, max_epochs=1).fit(Module(), loader())
        rows = [row for row in csv_rows(tmp_path / name) if "train_perf/tokens" in row]
        assert rows[-1]["train_perf/total_tokens"] == tokens()


def test_a_checkpoint_in_the_middle_holds_whole_totals(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    saving = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=3, save_top_k=-1)
    callback = AReaLMetricsCallback(report=False)
    trainer(tmp_path, saving, callback, max_epochs=1, log_every_n_steps=5, enable_checkpointing=True).fit(
        Module(), loader()
    )
    (path,) = (tmp_path / "ckpt").glob("*step=3.ckpt")
    saved = torch.load(path, weights_only=False)["callbacks"]
    (totals,) = [state["totals"] for name, state in saved.items() if "AReaL" in name]
    assert totals["tokens"] == sum(int(Sequences(ROWS)[index]["attention_mask"].sum()) for index in range(6))
    assert totals["optimizer_steps"] == 3
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    assert [row["train_perf/optimizer_steps"] for row in rows] == [5, 2]


def weights(folder, *callbacks):
    torch.manual_seed(3)
    module = Module()
    trainer(folder, *callbacks).fit(module, loader())
    return [value.clone() for value in module.state_dict().values()]


def test_training_is_bit_identical_with_and_without_the_callback(tmp_path):
    pairs = zip(weights(tmp_path / "a"), weights(tmp_path / "b", AReaLMetricsCallback(report=False)))
    assert all(torch.equal(first, second) for first, second in pairs)


def hooks_of(module):
    tables = ("_forward_hooks", "_forward_pre_hooks")
    return [len(getattr(part, table)) for part in module.modules() for table in tables], sorted(vars(module))


def test_a_copy_made_while_it_trains_is_a_module_of_its_own(tmp_path):
    copies = []

    class Copying(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            if not copies:
                copies.append(copy.deepcopy(pl_module))

    trainer(tmp_path, AReaLMetricsCallback(report=False), Copying(), max_epochs=1).fit(Module(), loader())
    (copied,) = copies
    assert copied.training_step.__self__ is copied
    rows = [row for row in csv_rows(tmp_path) if "train_perf/tokens" in row]
    assert sum(row["train_perf/tokens"] for row in rows) == tokens()


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind(error, tmp_path):
    class Failing(Module):
        def training_step(self, batch, batch_idx):
            if error is not None and batch_idx == 2:
                raise error("planted")
            return super().training_step(batch, batch_idx)

    module, callback = Failing(), AReaLMetricsCallback(report=False)
    before = hooks_of(module)
    if error is None:
        trainer(tmp_path, callback).fit(module, loader())
    else:
        with pytest.raises(SystemExit if error is KeyboardInterrupt else error):
            trainer(tmp_path, callback).fit(module, loader())
    assert callback.session is None
    after = hooks_of(module)
    assert after[0] == before[0]
    assert not find_wraps(module)


def test_errors_in_the_arguments_are_raised_at_once():
    with pytest.raises(ValueError, match=r"moe_balence.*moe_balance"):
        AReaLMetricsCallback(moe_balence=True)
    with pytest.raises(ValueError, match=r"every.*0"):
        AReaLMetricsCallback(every=0)
