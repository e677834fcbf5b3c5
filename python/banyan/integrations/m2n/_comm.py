"""The world behind a communicator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from ... import World
from ...torch import world as world_of

#: Worlds of objects that are neither worlds nor process groups, by their ids. The objects are held.
_attached: dict[int, tuple[Any, World]] = {}


def attach(comm: Any, world: World | None = None) -> World:
    """Let ``reshard`` take a communicator of another library, and return its world. Collective.

    ``world`` None: ``comm`` has a store of ``torch.distributed`` (``tcp_store`` or ``store``),
    ``rank`` and ``world_size``, as NeMo-RL's StatelessProcessGroup. The world opens through the
    store. It is attached to ``comm.nccl_communicator``, too, if there is one. Attached objects stay
    until their world is closed and another attach is made.
    """
    for key in [key for key, (_, one) in _attached.items() if not one.is_open]:
        del _attached[key]
    found = _attached.get(id(comm))
    if world is None and found is not None:
        return found[1]
    if world is None:
        store = getattr(comm, "tcp_store", None) or getattr(comm, "store", None)
        if store is None or not hasattr(comm, "rank") or not hasattr(comm, "world_size"):
            raise TypeError(
                f"comm: a World, a process group of torch.distributed or an object with a store, a "
                f"rank and a world_size is needed, not {type(comm).__name__}: attach(comm, world)"
            )
        world = World.from_store(store, comm.rank, comm.world_size, prefix="banyan.m2n")
    for one in (comm, getattr(comm, "nccl_communicator", None)):
        if one is not None:
            _attached[id(one)] = (one, world)
    return world


def world_and_ranks(comm: Any) -> tuple[World, Mapping[int, int] | None]:
    """Return the world of a communicator, and its ranks by those of meshes; None: the same."""
    if isinstance(comm, World):
        return comm, None
    if comm is None or isinstance(comm, dist.ProcessGroup):
        world = world_of(comm)
        members = dist.get_process_group_ranks(comm if comm is not None else dist.group.WORLD)
        return world, {rank: i for i, rank in enumerate(members)}
    return attach(comm), None
