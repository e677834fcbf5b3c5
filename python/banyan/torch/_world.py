"""Worlds of the process groups of torch.distributed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from .. import World

if TYPE_CHECKING:
    from ._process_group import ProcessGroupBanyan

_worlds: weakref.WeakKeyDictionary[dist.ProcessGroup, World] = weakref.WeakKeyDictionary()


def group_backend(group: dist.ProcessGroup) -> ProcessGroupBanyan | None:
    """Return the group's backend, if it is "banyan" for any device."""
    from ._process_group import ProcessGroupBanyan

    if isinstance(group, ProcessGroupBanyan):  # before PyTorch 2.14
        return group
    for device in ("cpu", "cuda"):
        try:
            backend = group._get_backend(torch.device(device))
        except RuntimeError:  # the group has none for this device
            continue
        if isinstance(backend, ProcessGroupBanyan):
            return backend
    return None


def world(group: dist.ProcessGroup | None = None) -> World:
    """Return the world of a group's ranks, in the order of the group. None: the default group.

    A group of the backend "banyan" has a world. For another group, the first call opens one
    through the group's store, and is collective over the group. It is kept until the interpreter
    exits, or until ``world(group).close()``. Raises ValueError if this process is not in the group,
    or if no default group is initialized.
    """
    if group is None:
        if not dist.is_initialized():
            raise ValueError("no default process group: call torch.distributed.init_process_group")
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError("this process is not in the group")
    backend = group_backend(group)
    if backend is not None:
        return backend.world
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
