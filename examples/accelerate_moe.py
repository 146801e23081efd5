"""A small Qwen3-MoE trained as a byte-level language model with Accelerate and one call.

    python examples/accelerate_moe.py
    areal-callbacks launch --config_file examples/accelerate/multi_gpu.yaml examples/accelerate_moe.py

No network, no account. The second line would also measure a script without the call of ``enable``.
"""

from __future__ import annotations

import argparse
import importlib.util

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from areal_callbacks.examples.byte_text import PAD, VOCABULARY, ByteText
from areal_callbacks.integrations.accelerate import enable


def make_model() -> Qwen3MoeForCausalLM:
    return Qwen3MoeForCausalLM(
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
            output_router_logits=True,  # adds the load-balancing loss
            router_aux_loss_coef=0.01,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="accelerate_output", help="folder of the results (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()

    set_seed(0)
    tracker = "tensorboard" if importlib.util.find_spec("tensorboard") else None
    accelerator = Accelerator(gradient_accumulation_steps=2, log_with=tracker, project_dir=options.output)
    enable(accelerator)
    accelerator.init_trackers("runs")
    model = make_model()
    rows = ByteText("train", rows=16 * options.steps * accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=2e-3), DataLoader(rows, batch_size=8)
    )
    step = 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            if step % 5 == 0 or step == options.steps:
                accelerator.log({"loss": loss.item()}, step=step)
                accelerator.print(f"step {step}: loss {loss.item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
