"""Models of transformers, sharded by FSDP2, whose weights follow from names and a version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from environment import DEVICE
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForCausalLM

#: Returns the whole tensor of a name and a shape in a version.
Values = Callable[[str, torch.Size, int], torch.Tensor]


def load_sharded(folder: Path, count: int) -> Any:
    """Load a folder's model, and shard each layer over ``count`` ranks."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.to(DEVICE)
    mesh = init_device_mesh(DEVICE, (count,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def values(name: str, shape: torch.Size, version: int) -> torch.Tensor:
    """The whole tensor of a version."""
    generator = torch.Generator().manual_seed(sum(name.encode()) * 1000 + version)
    whole = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return 1 + whole / 4
    return whole * shape[-1] ** -0.5 if len(shape) > 1 else whole


def changed_values(name: str, shape: torch.Size, version: int) -> torch.Tensor:
    """The whole tensor of a version in which every 31st element is new."""
    whole = values(name, shape, 0)
    for change in range(1, version + 1):
        whole.view(-1)[change::31] = values(name, shape, change).view(-1)[change::31]
    return whole


def fill(module: torch.nn.Module, version: int, of: Values = values) -> None:
    """Give all tensors the values of a version, also if this rank has shards of them."""
    with torch.no_grad():
        for name, parameter in module.state_dict(keep_vars=True).items():
            whole = of(name, parameter.shape, version).to(parameter.device, parameter.dtype)
            if isinstance(parameter, DTensor):
                whole = distribute_tensor(
                    whole, parameter.device_mesh, parameter.placements, src_data_rank=None
                )
            parameter.copy_(whole)


def save(folder: Path, version: int, of: Values = values) -> None:
    """Write the model of a version as transformers saves it, beside the folder that it has now."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    fill(model, version, of)
    model.save_pretrained(folder.with_name(f"version{version}"))
