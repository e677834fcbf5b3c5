"""Collective algorithms as programs, with the names and signatures of MSCCL++'s language.

A program states for all ranks at once which thread block copies, reduces, puts and waits::

    from banyan.language import *

    with CollectiveProgram("mine", AllGather(2, 1, False), 2) as program:
        ...
    program.check()

Programs that were written for MSCCL++ run when their imports say ``banyan.language`` instead of
``mscclpp.language``, or unchanged after ``import banyan.compat.mscclpp``. docs/language-python.md
is the manual.
"""

from __future__ import annotations

from .channel import MemoryChannel, PortChannel, SwitchChannel
from .collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Custom,
    Reduce,
    ReduceScatter,
    SendRecv,
    TestCollective,
)
from .general import JSON
from .loop import LoopIterationContext
from .program import CollectiveProgram
from .rank import Buffer, Rank, Semaphore
from .thread_block_group import ThreadBlockGroup
from .types import BufferType, Chunk, ReduceOperationType, SyncType
from .utils import AlgoSpec, ReplicationPolicy

__all__ = [
    "JSON",
    "AlgoSpec",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "Buffer",
    "BufferType",
    "Chunk",
    "Collective",
    "CollectiveProgram",
    "Custom",
    "LoopIterationContext",
    "MemoryChannel",
    "PortChannel",
    "Rank",
    "Reduce",
    "ReduceOperationType",
    "ReduceScatter",
    "ReplicationPolicy",
    "Semaphore",
    "SendRecv",
    "SwitchChannel",
    "SyncType",
    "TestCollective",
    "ThreadBlockGroup",
]
