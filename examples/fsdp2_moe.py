"""A small Qwen3-MoE sharded with FSDP2 in a training loop of one's own.

    torchrun --nproc-per-node 2 examples/fsdp2_moe.py

No network, no account, about a minute on two CPU cores; on GPUs the same script trains over NCCL.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, set_seed

from areal_callbacks.examples.byte_text import PAD, VOCABULARY, ByteText
from areal_callbacks.integrations.fsdp import track
from areal_callbacks.topology import Topology


def sharded_model(mesh: torch.distributed.DeviceMesh, device: torch.device) -> Qwen3MoeForCausalLM:
    set_seed(0)
    size = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    balanced = {"output_router_logits": True, "router_aux_loss_coef": 0.02}  # adds the load-balancing loss
    config = Qwen3MoeConfig(vocab_size=VOCABULARY, pad_token_id=PAD, num_hidden_layers=3, **size, **experts, **balanced)
    model = Qwen3MoeForCausalLM(config).to(device)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="fsdp2_output", help="folder of the results (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    mesh = init_device_mesh(kind, (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    model = sharded_model(mesh, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data = ByteText("train", rows=4 * options.steps * mesh.size(), length=128)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))

    with track(model, optimizer, topology=Topology.from_mesh(mesh), output_dir=options.output) as metrics:
        for step, batch in enumerate(loader, 1):
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            with metrics.step():
                loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if step % 10 == 0 or step == len(loader):  # on every rank; the first one prints and writes
                metrics.export(step, host={"loss": loss.item()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
