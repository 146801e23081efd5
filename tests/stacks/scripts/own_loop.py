"""A loop of its own around the parts of a library: ``own_loop.py LIBRARY MODEL OUT [--track]``.

OLMo-core's experts are kernels of a GPU; in their place stands a module with their arguments.
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from loops import read_batches
from safetensors.torch import save_file
from torch import Tensor, nn

WORDS, WIDTH, HIDDEN, EXPERTS, TOP_K = 264, 32, 64, 4, 2


class Language(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(nn.ModuleDict({"moe": block}) for block in blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer["moe"](x)
        return self.head(x)


def make_torchtitan() -> nn.Module:
    from torchtitan.models.common.config_utils import make_moe_config, make_routed_experts_config, make_router_config

    initial = {"weight": nn.init.xavier_normal_, "bias": nn.init.zeros_}
    experts = dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), nn.init.xavier_normal_)
    sizes = {"dim": WIDTH, "num_experts": EXPERTS, "top_k": TOP_K}
    config = make_moe_config(
        num_experts=EXPERTS,
        router=make_router_config(**sizes, gate_param_init=initial),
        routed_experts=make_routed_experts_config(
            **sizes, hidden_dim=HIDDEN, param_init=experts, comm_backend="standard"
        ),
    )
    blocks = [config.build() for _ in range(2)]
    for block in blocks:
        block.init_states(buffer_device=torch.device("cpu"))
    return Language(blocks)


class Experts(nn.Module):
    """Takes what OLMo-core's ``ParallelMLP`` takes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.inner = EXPERTS, nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Tensor, expert_weights: Tensor, expert_indices: Tensor, batch_size_per_expert: Tensor) -> Any:
        chosen = nn.functional.one_hot(expert_indices, EXPERTS).to(x.dtype)
        shares = (chosen * expert_weights[..., None]).sum(-2)
        return sum(shares[..., number, None] * expert(x) for number, expert in enumerate(self.inner))


def make_olmo_core() -> nn.Module:
    from olmo_core.nn.moe import MoEConfig, MoERouterConfig

    config = MoEConfig(num_experts=EXPERTS, hidden_size=HIDDEN, router=MoERouterConfig(top_k=TOP_K))
    blocks = [config.build(WIDTH, n_layers=2, init_device="cpu") for _ in range(2)]
    for block in blocks:
        block.experts = Experts()
        nn.init.xavier_normal_(block.router.weight.view(EXPERTS, WIDTH))
    return Language(blocks)


def make_torchtune() -> nn.Module:
    from torchtune.models.llama3 import llama3

    return llama3(
        vocab_size=WORDS,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        embed_dim=WIDTH,
        max_seq_len=256,
        intermediate_dim=HIDDEN,
    )


def train(model: nn.Module, batches: list[Any], tracks: bool) -> None:
    from areal_callbacks import track

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with track(model, optimizer, report=False) if tracks else nullcontext() as metrics:
        for step, batch in enumerate(batches):
            with metrics.step() if metrics else nullcontext():
                logits = model(batch["input_ids"])
                nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][0, 1:]).backward()
                optimizer.step()
                optimizer.zero_grad()
            if metrics:
                metrics.export(step)


if __name__ == "__main__":
    library, source, out = sys.argv[1:4]
    torch.manual_seed(7)
    made = {"torchtitan": make_torchtitan, "olmo-core": make_olmo_core, "torchtune": make_torchtune}[library]()
    train(made.train(), read_batches(source, 1), "--track" in sys.argv)
    Path(out).mkdir(exist_ok=True)
    save_file(made.state_dict(), Path(out, "model.safetensors"))
