"""Programs: collective algorithms of all ranks at once."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from .. import _core
from .._errors import ProgramError
from .channel import (
    BufferType,
    ChannelType,
    Chunk,
    MemoryChannel,
    PortChannel,
    RankGroup,
    ReduceOperationType,
    SwitchChannel,
    SyncType,
    ThreadBlockGroup,
)
from .collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    BaseBuffer,
    Broadcast,
    Collective,
    Custom,
    Reduce,
    ReduceScatter,
    SendRecv,
    TestCollective,
)
from .context import get_program, set_program
from .rank import Semaphore
from .types import ReplicationPolicy
from .utils import AlgoSpec

__all__ = [
    "AlgoSpec",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "BaseBuffer",
    "Broadcast",
    "BufferType",
    "ChannelType",
    "Chunk",
    "Collective",
    "CollectiveProgram",
    "Custom",
    "MemoryChannel",
    "PortChannel",
    "RankGroup",
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
    "get_program",
    "set_program",
]


class CollectiveProgram:
    """A collective algorithm, written as a program.

    Inside ``with``, calls of ranks and channels add operations. ``compile`` makes a plan of them.
    """

    def __init__(
        self,
        name: str,
        collective: Collective,
        num_ranks: int,
        instances: int = 1,
        protocol: str = "Simple",
        instr_fusion: bool = True,
        auto_sync: bool = True,
        replication_policy: ReplicationPolicy = ReplicationPolicy.interleaved,
        reuse_resources: bool = False,
        num_threads_per_block: int = 1024,
        use_double_scratch_buffer: bool = False,
        buffer_alignment: int = 16,
        min_message_size: int = 0,
        max_message_size: int = 2**64 - 1,
        *,
        fuse_more: bool = False,
        reused_scratch_bytes: int = 0,
    ) -> None:
        """Begin a program.

        ``instances``: copies of the program, on thread blocks and channels of their own.
        ``protocol``: "Simple", or "LL" for packets. ``instr_fusion``: fuse adjacent operations;
        ``fuse_more``: more of them than MSCCL++ does. ``auto_sync``: insert the synchronization
        that data dependencies need. ``reuse_resources``: scratch has a fixed size, of
        ``reused_scratch_bytes`` (0: 64 MiB). Sizes are in bytes, both included.
        """
        if protocol not in ("Simple", "LL"):
            raise AssertionError(f'protocol "{protocol}": "Simple" and "LL" are possible')
        self.name = name
        self.collective = collective
        self.num_ranks = num_ranks
        self.instances = instances
        self.protocol = protocol
        self.instr_fusion = instr_fusion
        self.auto_sync = auto_sync
        self.replication_policy = replication_policy
        self.reuse_resources = reuse_resources
        self.num_threads_per_block = num_threads_per_block
        self.use_double_scratch_buffer = use_double_scratch_buffer
        self.buffer_alignment = buffer_alignment
        self.min_message_size = min_message_size
        self.max_message_size = max_message_size
        self.fuse_more = fuse_more
        self.reused_scratch_bytes = reused_scratch_bytes
        self.buffers = collective.init_buffers()
        if len(self.buffers) != num_ranks:
            raise ProgramError(
                f'program "{name}" of {num_ranks} ranks: its collective has {len(self.buffers)}'
            )
        self._builder = _core._Program.create(
            name or "", num_ranks, vars(self), collective._describe()
        )
        self._scratch_chunks: dict[int, int] = defaultdict(int)
        self._ids: dict[tuple[str, int], int] = defaultdict(int)
        self._in_loop = False

    @classmethod
    def from_spec(cls, spec: AlgoSpec) -> CollectiveProgram:
        """Begin a program with the arguments of a specification."""
        return cls(
            spec.name,
            spec.collective,
            spec.world_size,
            instances=spec.instances,
            protocol=spec.protocol,
            instr_fusion=spec.instr_fusion,
            auto_sync=spec.auto_sync,
            replication_policy=spec.replication_policy,
            reuse_resources=spec.reuse_resources,
            num_threads_per_block=spec.num_threads_per_block,
            use_double_scratch_buffer=spec.use_double_scratch_buffer,
            buffer_alignment=spec.buffer_alignment,
            min_message_size=spec.min_message_size,
            max_message_size=spec.max_message_size,
        )

    def __enter__(self) -> CollectiveProgram:
        """Make this the program that calls add to."""
        set_program(self)
        return self

    def __exit__(self, *exception: object) -> None:
        """End the program's text. It may be entered again."""
        set_program(None)

    def _next_id(self, kind: str, rank: int) -> int:
        self._ids[kind, rank] += 1
        return self._ids[kind, rank] - 1

    def _chunks_of(self, rank: int, buffer: BufferType) -> int:
        if buffer == BufferType.scratch:
            return self._scratch_chunks[rank]
        return self.buffers[rank][buffer].size

    def _begin_loop(self, unit: int, num_chunks: int) -> None:
        if self._in_loop:
            raise ProgramError("a loop begins inside a loop: loops do not nest")
        self._builder.loop_begin(unit, num_chunks)
        self._in_loop = True

    def _end_loop(self) -> None:
        self._builder.loop_end()
        self._in_loop = False

    def tag(self, key: str, value: str) -> None:
        """Set a tag of the plan, for example its author or the machine it is for."""
        self._builder.tag(key, value)

    def compile(self) -> _core.Plan:
        """Compile the program. It does not change: you may add to it and compile it again."""
        return self._builder.compile()

    def to_json(self, indent: int | None = 2, **kwargs: Any) -> str:
        """Compile the program and return its plan as JSON text (``kwargs`` of json.dumps)."""
        return json.dumps(json.loads(self.compile().json()), indent=indent, **kwargs)

    def check(self, *args: Any, **options: Any) -> _core.CheckReport:
        """Prove the program sound, or report each fault with its lines (``Plan.check``)."""
        return self.compile().check(*args, **options)

    def simulate(self, topology: Any, *args: Any, **options: Any) -> _core.Simulation:
        """Predict the time of a run on a machine (``Plan.simulate``)."""
        return self.compile().simulate(topology, *args, **options)

    def view(self, **options: Any) -> Any:
        """Draw the program (``Plan.view``)."""
        return self.compile().view(**options)

    def run(self, world: _core.World, input: Any, output: Any = None, **options: Any) -> Any:
        """Run the program once between the ranks of a world (``Plan.run``). Collective."""
        return self.compile().run(world, input, output, **options)

    def test(self, **options: Any) -> dict[str, Any]:
        """Run the program between new processes and check its results (``Plan.test``)."""
        return self.compile().test(**options)

    def _repr_html_(self) -> str:
        """Draw the program in a notebook."""
        return self.compile()._repr_html_()
