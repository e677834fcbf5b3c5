"""Models of transformers, sharded by FSDP2, whose weights follow from names and a version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from environment import DEVICE
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForCausalLM


def load_sharded(folder: Path, count: int) -> Any:
    """Load a folder's model, and shard each layer over ``count`` ranks."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.to(DEVICE)
    mesh = init_device_mesh(DEVICE, (count,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fill(module: torch.nn.Module, version: int) -> None:
    """Give all tensors the values of a version, also if this rank has shards of them."""
    with torch.no_grad():
        for name, parameter in module.state_dict(keep_vars=True).items():
            generator = torch.Generator().manual_seed(sum(name.encode()) * 1000 + version)
            whole = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                whole = 1 + whole / 4
            elif parameter.ndim > 1:
                whole *= parameter.shape[-1] ** -0.5
            whole = whole.to(parameter.device, parameter.dtype)
            if isinstance(parameter, DTensor):
                whole = distribute_tensor(
                    whole, parameter.device_mesh, parameter.placements, src_data_rank=None
                )
            parameter.copy_(whole)


def save(folder: Path, version: int) -> None:
    """Write the model of a version as transformers saves it, beside the folder that it has now."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    fill(model, version)
    model.save_pretrained(folder.with_name(f"version{version}"))
