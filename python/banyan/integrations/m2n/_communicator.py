"""A communicator that stands where a program has NCCL's."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import Replicate

from ... import Unsupported, World
from .._updates import leave
from ._comm import attach, store_of, world_and_ranks
from ._reshard import reshard
from ._window import Window

#: Numbers that stand for pointers; those of NCCL's communicators are multiples of 8.
_numbers = itertools.count(0x42414E59_0001, 8)
#: Seconds that ranks wait for each other in the rendezvous, as vLLM's groups do.
_RENDEZVOUS_S = 300


class _Group(NamedTuple):
    """Ranks that share a store."""

    store: Any
    rank: int
    world_size: int


class Communicator:
    """The ranks of a world, with the names of vLLM's PyNcclCommunicator and of nccl4py's class.

    ``comm`` and ``ptr`` are a number by which ``reshard`` finds the world. On the host and on GPUs.
    """

    def __init__(self, group: Any, device: Any = None, library_path: str | None = None) -> None:
        """Open the world of a group. Collective over the group.

        ``group``: an object with a store of ``torch.distributed``, ``rank`` and ``world_size``, as
        vLLM's StatelessProcessGroup; a process group of ``torch.distributed``, or a World.
        ``device``: of the tensors of ``broadcast``; a number is that of a GPU, or the host where
        PyTorch has no GPU. ``library_path`` has no effect: there is no library of NCCL.
        """
        self.group = group
        self.owns_world = store_of(group) is not None
        if self.owns_world:
            self.world = World.from_store(
                store_of(group), group.rank, group.world_size, prefix="banyan.m2n"
            )
        else:
            self.world, _ = world_and_ranks(group)
        self.rank, self.world_size = self.world.rank, self.world.size
        has_gpu = torch.cuda.is_available()
        if device is None or isinstance(device, int):
            index = torch.cuda.current_device() if device is None and has_gpu else device
            device = f"cuda:{index}" if has_gpu else "cpu"
        self.device = torch.device(device)
        self.comm = next(_numbers)
        self.available, self.disabled = True, False
        attach(self, self.world)

    @classmethod
    def open(
        cls, master_address: str, master_port: int, rank: int, world_size: int, device: Any = None
    ) -> Communicator:
        """Open a world by the address of rank 0, with vLLM's arguments. Collective."""
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            master_address,
            master_port,
            world_size,
            is_master=rank == 0,
            timeout=timedelta(seconds=_RENDEZVOUS_S),
        )
        return cls(_Group(store, rank, world_size), device)

    @classmethod
    def from_unique_id_bytes(cls, *_: Any, **__: Any) -> Communicator:
        """Raise Unsupported: an id of NCCL has no address at which a world could meet."""
        raise Unsupported(
            "an NCCL unique id cannot open a world of Banyan: give master_address and master_port "
            "in place of nccl_unique_id_b64"
        )

    @property
    def ptr(self) -> int:
        """Number by which ``reshard`` finds the world."""
        return self.comm

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return self.world_size

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        """Copy the tensor of rank ``src`` to all others. Collective."""
        if self.world_size == 1 or tensor.numel() == 0:
            return
        given = tensor.detach().unsqueeze(0) if tensor.dim() == 0 else tensor
        reshard(
            given if self.rank == src else None,
            given if self.rank != src else None,
            self,
            stream,
            src_mesh=[src],
            src_placements=[Replicate()],
            dst_mesh=[rank for rank in range(self.world_size) if rank != src],
            dst_placements=[Replicate()],
        )

    def register_window(self, buffer: Any, flags: Any = None) -> Window:
        """Register the memory of a dense tensor for ``reshard_with_window``. Collective."""
        return Window(self.world, buffer)

    def register_comm_window(self, tensor: torch.Tensor) -> Window:
        """Register the memory of a dense tensor, by vLLM's name of the call. Collective."""
        return Window(self.world, tensor)

    def deregister_comm_window(self, window: Window) -> None:
        """Close a window. Local."""
        window.close()

    def destroy(self) -> None:
        """Leave the world, and close it if the communicator opened it. Local.

        Waits a little for the other ranks. Those that stay get Aborted from their next call.
        """
        self.available, self.disabled = False, True
        if self.owns_world:
            leave(self.world, f"rank {self.rank} destroyed its communicator", together=True)
