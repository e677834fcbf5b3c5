"""Worlds of the process groups of torch.distributed."""

from __future__ import annotations

import weakref

import torch.distributed as dist

from .. import World

_worlds: weakref.WeakKeyDictionary[dist.ProcessGroup, World] = weakref.WeakKeyDictionary()


def world(group: dist.ProcessGroup | None = None) -> World:
    """Return the world of a group's ranks, in the order of the group. None: the default group.

    The first call opens it through the group's store, and is collective over the group. The world
    is kept until the interpreter exits, or until ``world(group).close()``. It is not the world that
    a group of the backend "banyan" uses itself. Raises ValueError if this process is not in the
    group, or if no default group is initialized.
    """
    if group is None:
        if not dist.is_initialized():
            raise ValueError("no default process group: call torch.distributed.init_process_group")
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("this process is not in the group")
    found = _worlds.get(group)
    if found is None or not found.is_open:
        store = dist.distributed_c10d._world.pg_map[group][1]
        timeout = dist.distributed_c10d._get_default_timeout(dist.get_backend(group))
        found = World.from_store(
            store,
            group.rank(),
            group.size(),
            prefix="banyan.torch.world",
            timeout=timeout.total_seconds(),
        )
        _worlds[group] = found
    return found
