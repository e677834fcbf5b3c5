"""Two slots in each direction."""

from __future__ import annotations

import torch
from megatron.core.resharding.nvshmem_copy_service.nvshmem_types import MAX_SEGMENT_SIZE

from banyan import World, alloc
from banyan.torch import world as world_of


class DoubleBufferManager:
    """The slots of a rank: tensors of bytes, in memory that peers reach."""

    def __init__(
        self,
        slot_size: int = MAX_SEGMENT_SIZE,
        *,
        world: World | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Keep the options. ``slot_size``: bytes of a slot, equal on all ranks.

        ``world``: by default that of the default group. ``device``: by default the current GPU, or
        the host if there is none.
        """
        self.slot_size = slot_size
        self.world = world
        self.device = device
        self.send_slots: list[torch.Tensor | None] = [None, None]
        self.recv_slots: list[torch.Tensor | None] = [None, None]

    def allocate(self) -> None:
        """Allocate the slots. Collective."""
        if self.world is None:
            self.world = world_of(None)
        if self.device is None:
            has_gpu = torch.cuda.is_available()
            self.device = torch.device("cuda", torch.cuda.current_device()) if has_gpu else None
        memory = alloc(self.world, 4 * self.slot_size, self.device)
        slots = memory.array().torch().split(self.slot_size)
        self.send_slots, self.recv_slots = list(slots[:2]), list(slots[2:])

    def get_send_slot(self, iteration: int) -> torch.Tensor | None:
        """Return the send slot of an iteration."""
        return self.send_slots[iteration % 2]

    def get_recv_slot(self, iteration: int) -> torch.Tensor | None:
        """Return the receive slot of an iteration."""
        return self.recv_slots[iteration % 2]

    def free(self) -> None:
        """Give the slots up. Their memory is freed when no tensor uses it any more."""
        self.send_slots, self.recv_slots = [None, None], [None, None]
