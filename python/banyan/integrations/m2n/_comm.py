"""The world behind a communicator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from ... import World
from ...torch import world as world_of

#: Worlds of objects that are neither worlds nor process groups, by their ids. The objects are held.
_attached: dict[int, tuple[Any, World]] = {}
#: Worlds by the pointers of communicators.
_pointers: dict[int, World] = {}


def _pointer_of(comm: Any) -> int:
    """Return the pointer of nccl4py's Communicator or vLLM's PyNcclCommunicator; 0: none."""
    for name in ("ptr", "comm"):
        found = getattr(comm, name, None)
        found = getattr(found, "value", found)
        if isinstance(found, int):
            return found
    return 0


def store_of(comm: Any) -> Any:
    """Return the store of torch.distributed that an object has, or its group; None: none."""
    for one in (comm, getattr(comm, "group", None)):
        for name in ("tcp_store", "store"):
            if getattr(one, name, None) is not None:
                return getattr(one, name)
    return None


def attach(comm: Any, world: World | None = None) -> World:
    """Let ``reshard`` take a communicator of another library, and return its world. Collective.

    ``world`` None: ``comm`` or ``comm.group`` has a store of ``torch.distributed`` (``tcp_store``
    or ``store``), and ``comm`` has ``rank`` and ``world_size``, as NeMo-RL's StatelessProcessGroup
    and vLLM's PyNcclCommunicator. The world opens through the store.

    The world is found by ``comm``, by ``comm.nccl_communicator``, and by the pointer of either
    (``ptr`` or ``comm``). Attached objects stay until their world is closed and another attach is
    made.
    """
    _forget_closed()
    found = _attached.get(id(comm))
    if world is None and found is not None:
        return found[1]
    if world is None:
        store = store_of(comm)
        if store is None or not hasattr(comm, "rank") or not hasattr(comm, "world_size"):
            raise TypeError(
                f"comm: a World, a process group of torch.distributed or an object with a store, a "
                f"rank and a world_size is needed, not {type(comm).__name__}: attach(comm, world)"
            )
        world = World.from_store(store, comm.rank, comm.world_size, prefix="banyan.m2n")
    for one in (comm, getattr(comm, "nccl_communicator", None)):
        if one is not None:
            _attached[id(one)] = (one, world)
            _pointers[_pointer_of(one)] = world
    return world


def _forget_closed() -> None:
    """Drop the closed worlds."""
    for key in [key for key, (_, one) in _attached.items() if not one.is_open]:
        del _attached[key]
    for key in [key for key, one in _pointers.items() if not one.is_open]:
        del _pointers[key]


def world_and_ranks(comm: Any) -> tuple[World, Mapping[int, int] | None]:
    """Return the world of a communicator, and its ranks by those of meshes; None: the same."""
    if isinstance(comm, World):
        return comm, None
    if comm is None or isinstance(comm, dist.ProcessGroup):
        world = world_of(comm)
        members = dist.get_process_group_ranks(comm if comm is not None else dist.group.WORLD)
        return world, {rank: i for i, rank in enumerate(members)}
    if isinstance(comm, int):
        if comm == 0 or comm not in _pointers:
            raise TypeError(
                f"comm: {comm:#x} is not the pointer of a Communicator of Banyan or of an attached "
                "one: attach(communicator)"
            )
        return _pointers[comm], None
    return attach(comm), None
