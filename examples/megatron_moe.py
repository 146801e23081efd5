"""A small mixture-of-experts GPT of megatron.core on the CPU: two pipeline stages of two virtual stages each.

    python -m torch.distributed.run --nproc-per-node 2 examples/megatron_moe.py          (from a clone, without a GPU)

What megatron.core asks of a GPU is answered by tests/megatron_cpu.py; tests/tiny_megatron.py builds the model. On GPUs
a script is the same without them: attach() takes whatever Megatron's schedule and optimizer are given.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # megatron.core compiles small functions, which takes longer than this training
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import torch.distributed as dist
from support.megatron_cpu import pretend_cuda
from support.tiny_megatron import MICRO_BATCHES, Layout, batches, build, parallel

from areal_callbacks.integrations.megatron import attach


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="megatron_output", help="folder of the results (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (default: %(default)s)")
    options = parser.parse_args()

    pretend_cuda()
    dist.init_process_group("gloo")
    layout = Layout(pp=2, vpp=2, layers=8, optimizer={"lr": 1e-2})
    with parallel(layout):
        training = build(layout)
        with attach(training.chunks, training.optimizer, output_dir=options.output) as metrics:
            for step in range(1, options.steps + 1):
                data = metrics.unmeasured(training.iterators(batches(0, layout)))
                with metrics.step():
                    training.zero_gradients()
                    losses = training.forward_backward(data)
                    training.optimizer.step()
                if step % 5 == 0 or step == options.steps:  # every rank: the numbers are those of all of them
                    exported = metrics.export(step).metrics
                    if losses:  # on the last pipeline stage
                        loss = sum(float(part["lm loss"]) for part in losses) / MICRO_BATCHES
                        shown = ("train_perf/tokens_per_second", "moe_balance/max_over_ideal_max")
                        numbers = [f"{name} {exported[name]:.3f}" for name in shown]
                        print(f"step {step}: loss {loss:.3f}", *numbers, sep="   ", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
