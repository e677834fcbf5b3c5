"""Train a model with FSDP2, and move its weights to a tensor-parallel engine after each step."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import banyan.torch


def model() -> torch.nn.Module:
    """Make the model, with the same weights on every rank."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))


dist.init_process_group("gloo")
trainer = fully_shard(model(), mesh=init_device_mesh("cpu", (4,)))
two_by_two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
split = {"0": ColwiseParallel(), "2": RowwiseParallel()}
engine = parallelize_module(model(), two_by_two["tp"], split)
optimizer = torch.optim.AdamW(trainer.parameters(), lr=0.01)

for step in range(3):
    inputs = torch.randn(8, 64)
    trainer(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        before = (trainer(inputs) - engine(inputs)).abs().max()
        filled = banyan.torch.reshard(trainer, engine)  # planned in the first step
        after = (trainer(inputs) - engine(inputs)).abs().max()
    assert after < 1e-5 < before
    if dist.get_rank() == 0:
        print(f"step {step}: the engine holds version {filled.version}")
dist.destroy_process_group()
