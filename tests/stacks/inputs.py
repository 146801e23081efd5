"""Tiny models, their tokenizer and data, made by the environment of a stack: ``python inputs.py FOLDER``."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

SPECIAL = ("<pad>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 3,
    "bos_token_id": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({letter: number + len(SPECIAL) for number, letter in enumerate(letters)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens(list(SPECIAL))
    words = _with_low_special_ids(words)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<|im_end|>")
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template, tokenizer.model_max_length = TEMPLATE, 512
    return tokenizer


def _with_low_special_ids(words: Any) -> Any:
    from tokenizers import Tokenizer

    content = json.loads(words.to_str())
    content["model"]["vocab"].update({name: number for number, name in enumerate(SPECIAL)})
    for added in content["added_tokens"]:
        added["id"] = SPECIAL.index(added["content"])
    return Tokenizer.from_str(json.dumps(content))


def make_models(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer = make_tokenizer()
    dense = {key: value for key, value in SIZES.items() if key != "head_dim"}
    for name, kind, config in (
        ("moe", Qwen3MoeForCausalLM, Qwen3MoeConfig(**SIZES, **EXPERTS)),
        ("dense", LlamaForCausalLM, LlamaConfig(**dense)),
    ):
        torch.manual_seed(7)
        kind(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def make_litgpt(folder: Path) -> None:
    """A checkpoint with litgpt's own mixture of experts, where litgpt is installed."""
    import torch

    try:
        from litgpt import GPT, Config
        from litgpt.utils import save_config
    except ImportError:
        return
    heads = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_query_groups": 2, "rotary_percentage": 1.0}
    experts = {"mlp_class_name": "LLaMAMoE", "n_expert": 4, "n_expert_per_token": 2, "moe_intermediate_size": 16}
    rest = {"block_size": 256, "padded_vocab_size": 264, "intermediate_size": 64, "norm_class_name": "RMSNorm"}
    config = Config(name="tiny", bias=False, parallel_residual=False, **heads, **experts, **rest)
    make_tokenizer().save_pretrained(folder)
    save_config(config, folder)
    torch.manual_seed(7)
    torch.save(GPT(config).state_dict(), folder / "lit_model.pth")


def make_data(folder: Path) -> None:
    """Rows of unequal length: text, a conversation, a preference, a prompt, a label, a pair."""
    dice = random.Random(5)

    def say(low: int, high: int) -> str:
        return " ".join(dice.choice(["alpha", "beta", "gamma", "delta", "of"]) for _ in range(dice.randint(low, high)))

    def talk() -> list[dict[str, str]]:
        return [{"role": "user", "content": say(2, 6)}, {"role": "assistant", "content": say(3, 12)}]

    def prefer() -> dict[str, Any]:
        question, chosen, rejected = talk()[0], talk()[1], talk()[1]
        return {"prompt": [question], "chosen": [chosen], "rejected": [rejected]}

    makers = {
        "text": lambda: {"text": say(4, 20)},
        "chat": lambda: {"messages": talk()},
        "alpaca": lambda: {"instruction": say(2, 6), "input": "", "output": say(3, 12)},
        "preference": prefer,
        "prompt": lambda: {"prompt": talk()[:1]},
        "label": lambda: {"text": say(3, 9), "label": dice.randint(0, 1)},
        "pair": lambda: {"anchor": say(3, 9), "positive": say(3, 9)},
    }
    for name, make in makers.items():
        (folder / name).mkdir(exist_ok=True)
        lines = [json.dumps(make()) for _ in range(16)]
        (folder / name / "train.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    make_models(place)
    make_litgpt(place / "litgpt")
    make_data(place)
