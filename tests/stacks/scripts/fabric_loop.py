"""A loop with Fabric, without callbacks and loggers: ``fabric_loop.py MODEL OUT``."""

import sys

import torch
from lightning.fabric import Fabric
from loops import load, loss_of

fabric = Fabric(accelerator="cpu", devices=1)
model, batches = load(sys.argv[1])
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
for batch in batches:
    fabric.backward(loss_of(model, batch))
    optimizer.step()
    optimizer.zero_grad()
model.module.save_pretrained(sys.argv[2])
