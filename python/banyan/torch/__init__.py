"""Banyan for PyTorch.

Importing it registers the backend "banyan" of ``torch.distributed``::

    import banyan.torch
    torch.distributed.init_process_group("banyan")              # CPU and CUDA tensors
    torch.distributed.init_process_group("cpu:gloo,cuda:banyan")
"""

from __future__ import annotations

from ._layout import layout, local_tensors
from ._load import load_sharded
from ._ops import (
    all_gather,
    all_reduce,
    all_reduce_,
    all_to_all,
    broadcast,
    reduce_scatter,
    send_recv,
)
from ._pool import MemoryPool
from ._process_group import ProcessGroupBanyan, register_backend
from ._reshard import Reshard, reshard
from ._world import world

__all__ = [
    "MemoryPool",
    "ProcessGroupBanyan",
    "Reshard",
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "broadcast",
    "layout",
    "load_sharded",
    "local_tensors",
    "reduce_scatter",
    "register_backend",
    "reshard",
    "send_recv",
    "world",
]

register_backend()
