"""GRPO of a tiny mixture-of-experts policy on sums of two digits, with one callback and a rollout engine of its own.

The engine computes in bfloat16, and it gets new weights only after every second update.

    python examples/grpo_mismatch.py

``ppo_actor/train_infer/*`` then shows how far the engine's log-probabilities are from the trainer's, and
``ppo_actor/update/version_stats/*`` how old its weights are. No network, about a minute on two CPU cores.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

from areal_callbacks.integrations.transformers import AReaLMetricsCallback

CHARACTERS = "0123456789+="
NEW_TOKENS = 4


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character."""
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def make_policy() -> Qwen3MoeForCausalLM:
    """Two layers of eight experts."""
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=2 + len(CHARACTERS),
            hidden_size=64,
            head_dim=16,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=2,
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )


def make_prompts(count: int) -> Dataset:
    """``"3+4="`` with the answer."""
    draw = random.Random(0)
    pairs = [(draw.randrange(10), draw.randrange(10)) for _ in range(count)]
    return Dataset.from_list([{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in pairs])


def correct_digits(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the right sum, less for every digit that is wrong or too much."""
    rewards = []
    for given, wanted in zip(completions, answer):
        right = sum(a == b for a, b in zip(given, wanted))
        rewards.append(right / max(len(given), len(wanted)))
    return rewards


class RolloutEngine:
    """Samples from a bfloat16 copy of the policy that is renewed after every ``renew_every``-th update."""

    def __init__(self, renew_every: int = 2) -> None:
        self.renew_every = renew_every
        self.version = -1
        self._model: Qwen3MoeForCausalLM | None = None

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[list[Any]]]:
        self._renew(trainer)
        tokenizer = trainer.processing_class
        inputs = tokenizer(prompts, return_tensors="pt", padding=True)
        model = self._model
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=True,
            top_k=0,
            max_new_tokens=NEW_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
        sampled = output.sequences[:, inputs["input_ids"].shape[1] :]
        logp = torch.stack(output.logits, 1).float().log_softmax(-1).gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
        lengths = [_length(row, tokenizer.eos_token_id) for row in sampled.tolist()]
        return {
            "prompt_ids": tokenizer(prompts)["input_ids"],
            "completion_ids": [row[:length].tolist() for row, length in zip(sampled, lengths)],
            "logprobs": [row[:length].tolist() for row, length in zip(logp, lengths)],
            "versions": [[self.version] * length for length in lengths],
        }

    def _renew(self, trainer: GRPOTrainer) -> None:
        step = trainer.state.global_step
        if self._model is None or step - self.version >= self.renew_every:
            policy = trainer.accelerator.unwrap_model(trainer.model)
            self._model = Qwen3MoeForCausalLM(policy.config)  # not a deep copy: the trainer has wrapped forward
            self._model.load_state_dict(policy.state_dict())
            self._model.to(torch.bfloat16).eval()
            self.version = step


def _length(tokens: list[int], end: int) -> int:
    return tokens.index(end) + 1 if end in tokens else len(tokens)


def make_trainer(output: str, steps: int, callbacks: Sequence[Any], **options: Any) -> GRPOTrainer:
    """A GRPO trainer whose completions come from a :class:`RolloutEngine`."""
    set_seed(0)
    defaults = {
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "num_generations": 8,
        "max_completion_length": NEW_TOKENS,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "dataloader_pin_memory": False,
    }
    return GRPOTrainer(
        model=make_policy(),
        reward_funcs=correct_digits,
        args=GRPOConfig(output_dir=output, max_steps=steps, **{**defaults, **options}),
        train_dataset=make_prompts(256),
        processing_class=make_tokenizer(),
        rollout_func=RolloutEngine(),
        callbacks=list(callbacks),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="grpo_output", help="folder of the results (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()
    trainer = make_trainer(options.output, options.steps, [AReaLMetricsCallback()])
    trainer.train()
    last = [row for row in trainer.state.log_history if "ppo_actor/task_reward/avg" in row][-1]
    for name in sorted(last):
        if name.startswith(("ppo_actor/", "timeperf/", "train_perf/")):
            print(f"{name:60} {last[name]:.6g}")


if __name__ == "__main__":
    main()
