"""An engine's tensors follow a publication, on the host or on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .. import Layout, Subscription, World


def settle(device: torch.device) -> None:
    """Wait for all work that uses tensors of the device, in any stream."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def follow(
    layout: Layout,
    tensors: Mapping[str, torch.Tensor],
    world: World,
    device: torch.device,
    **options: Any,
) -> Subscription:
    """Subscribe for the tensors of this rank; rank 0 has the address.

    On a GPU, commits exchange elements in PyTorch's current stream. Call ``settle`` before them if
    other streams use the tensors.
    """
    if device.type == "cuda":
        options["stream"] = torch.cuda.current_stream(device)
    return Subscription(layout, dict(tensors), world, None, None, **options)


class Before:
    """What tensors held before the first version, which goes straight to them.

    The copies lie in host memory: an engine's GPU has no room for them.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> None:
        """Copy the named ones."""
        self._tensors = {name: tensors[name] for name in names}
        self._copies = {
            name: one.detach().to("cpu", copy=True) for name, one in self._tensors.items()
        }

    def restore(self) -> None:
        """Put it back."""
        for name, one in self._tensors.items():
            one.copy_(self._copies[name])
