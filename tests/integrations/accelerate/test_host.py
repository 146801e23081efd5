"""What an accelerator does not tell, and what is said about it."""

from __future__ import annotations

from support.readback import messages
from support.tiny_accelerate import QUIET, Loop, column, hooks_of, make_accelerator
from support.tiny_trainer import metric_records, moe_model

from areal_callbacks.integrations.accelerate import enable


def test_a_loop_without_a_prepared_optimizer_is_told_so(tmp_path, caplog):
    accelerator = make_accelerator(tmp_path)
    enable(accelerator, **QUIET)
    accelerator.prepare(moe_model())
    accelerator.end_training()
    assert messages(caplog) == ["no optimizer was prepared: nothing was measured"]


def test_deepspeed_steps_inside_backward(tmp_path, caplog):
    accelerator = make_accelerator(tmp_path, gradient_accumulation_steps=2)
    loop = Loop(accelerator)

    class Engine:
        """What Accelerate calls of DeepSpeed's engine, which is not installed here."""

        def backward(self, loss, sync_gradients):
            loss.backward()

    accelerator.state.distributed_type = "DEEPSPEED"
    accelerator.deepspeed_engine_wrapped = Engine()
    enable(accelerator, **QUIET)
    for batch in loop.loader:
        with accelerator.accumulate(loop.model):
            accelerator.backward(loop.model(**batch).loss)
    accelerator.end_training()
    rows = [record.metrics for record in metric_records(tmp_path)]
    assert len(rows) == 4
    assert sum(column(rows, "tokens")) == sum(int(batch["attention_mask"].sum()) for batch in loop.loader)
    assert not any("optimizer" in name for row in rows for name in row)
    assert messages(caplog) == ["DeepSpeed steps inside backward: optimizer steps are not timed or counted"]


def test_megatron_lm_is_left_alone(tmp_path, caplog):
    accelerator = make_accelerator(tmp_path)
    loop = Loop(accelerator)
    loop.recount.remove()
    accelerator.state.distributed_type = "MEGATRON_LM"
    enable(accelerator, **QUIET)
    assert hooks_of(loop.model) == 0
    assert messages(caplog) == ["Accelerate's Megatron-LM engine hides its steps: nothing is measured"]
