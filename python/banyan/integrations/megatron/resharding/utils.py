"""Plans of Megatron-Core's resharding, as one rank sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .transforms import ReshardTransform


@dataclass
class TransferOp:
    """A part of a parameter that this rank sends to a rank or receives from it."""

    #: Name of the parameter on this rank.
    param_name: str
    peer_rank: int
    is_send: bool
    #: The part of this rank's tensor, and of the peer's.
    my_slice: tuple[slice, ...]
    peer_slice: tuple[slice, ...]
    #: Equal at both ends, and unique in the plan.
    task_id: int | None = None


@dataclass
class ReshardPlan:
    """All operations of this rank."""

    send_ops: list[TransferOp]
    recv_ops: list[TransferOp]
    #: Used by ``swap_model_weights``, if its caller passes no transform.
    transform: ReshardTransform | None = None
    #: Types of the source's persistent buffers, which Megatron-Core gathers once.
    buffer_dtypes: dict[str, torch.dtype] | None = None

    def __str__(self) -> str:
        """Return the numbers of operations."""
        return f"ReshardPlan(sends={len(self.send_ops)}, recvs={len(self.recv_ops)})"


def refit_tensors(module: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """Return the parameters and the persistent buffers of a module, by name. None has none."""
    if module is None:
        return {}
    found: dict[str, torch.Tensor] = dict(module.named_parameters())
    for prefix, part in module.named_modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found
