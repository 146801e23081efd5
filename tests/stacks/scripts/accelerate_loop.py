"""A loop with Accelerate: ``accelerate_loop.py MODEL OUT``."""

import sys

import torch
from accelerate import Accelerator
from loops import load, loss_of

accelerator = Accelerator(project_dir=sys.argv[2])
model, batches = load(sys.argv[1])
loader = torch.utils.data.DataLoader(batches, batch_size=None)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
for batch in loader:
    accelerator.backward(loss_of(model, batch))
    optimizer.step()
    optimizer.zero_grad()
accelerator.unwrap_model(model).save_pretrained(sys.argv[2], is_main_process=accelerator.is_main_process)
accelerator.end_training()
