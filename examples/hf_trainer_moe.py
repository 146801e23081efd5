"""A small Qwen3-MoE as a byte-level language model: the Hugging Face Trainer with one callback.

    python examples/hf_trainer_moe.py        (or, without the repository: areal-callbacks demo)

No network, no account, about a minute on two CPU cores.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments, set_seed

from areal_callbacks.examples.byte_text import PAD, VOCABULARY, ByteText
from areal_callbacks.integrations.transformers import AReaLMetricsCallback


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="demo_output", help="folder of the results (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()

    tensorboard = importlib.util.find_spec("tensorboard") is not None
    set_seed(0)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCABULARY,
            pad_token_id=PAD,
            hidden_size=128,
            head_dim=32,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=4,
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=128,
            output_router_logits=True,  # adds the load-balancing loss
            router_aux_loss_coef=0.01,
        )
    )
    args = TrainingArguments(
        output_dir=options.output,
        num_train_epochs=1,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=2e-3,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="no",
        dataloader_pin_memory=False,
        report_to="tensorboard" if tensorboard else "none",
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=ByteText("train", rows=16 * options.steps),
        eval_dataset=ByteText("eval", rows=64),
        callbacks=[AReaLMetricsCallback()],
    )
    trainer.train()
    if tensorboard:
        print(f"\nTo look at the curves: tensorboard --logdir {options.output}")
    report = Path(options.output, "areal_metrics", "report.html")
    if report.exists():
        print(f"\nOpen this file in a browser: {report}")


if __name__ == "__main__":
    main()
