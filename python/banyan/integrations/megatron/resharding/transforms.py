"""Changes of format during an execution of a reshard plan."""

from __future__ import annotations

import torch


class ReshardTransform:
    """Replaces how the executor sends and receives the parameters that it selects.

    Derive from this class. The two ends of a transfer exchange lists of tensors of equal length,
    shapes and types. Transforms of Megatron-Core are accepted, too.
    """

    def should_transform(self, param_name: str) -> bool:
        """Return True for a parameter that the transform sends and receives. Here: none."""
        return False

    def prepare_send(
        self, param_name: str, src_slice: tuple[slice, ...], src_param: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return the tensors to send for a part of a parameter, for example data and scales."""
        raise NotImplementedError

    def prepare_recv(self, param_name: str, dst_slice: tuple[slice, ...]) -> list[torch.Tensor]:
        """Return the tensors to receive into, as many as the sender sends."""
        raise NotImplementedError

    def finalize_recv(
        self, param_name: str, dst_slice: tuple[slice, ...], recv_buffers: list[torch.Tensor]
    ) -> None:
        """Write received tensors to their place."""
        raise NotImplementedError
