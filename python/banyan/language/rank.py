"""Operations inside a rank: copies, reductions, barriers, semaphores, scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._errors import ProgramError
from .context import (
    blocks_of,
    get_program,
    require_at,
    require_equal,
    require_rank,
    require_scratch,
)
from .thread_block_group import ThreadBlockGroup
from .types import BaseBuffer, BufferType, Chunk, ReduceOperationType, SyncType

__all__ = [
    "BaseBuffer",
    "Buffer",
    "BufferType",
    "Chunk",
    "Rank",
    "ReduceOperationType",
    "Semaphore",
    "SyncType",
    "ThreadBlockGroup",
    "get_program",
]


@dataclass
class Rank:
    """A rank of the program. Its operations are carried out by thread block ``tb``, or divided
    between those of ``tb_group``.
    """

    rank: int

    def __post_init__(self) -> None:
        """Require that the program has the rank."""
        require_rank(self.rank)

    def get_input_buffer(self) -> BaseBuffer:
        """Return the rank's input."""
        return get_program().buffers[self.rank][BufferType.input]

    def get_output_buffer(self) -> BaseBuffer:
        """Return the rank's output."""
        return get_program().buffers[self.rank][BufferType.output]

    def _require_copy(self, dst_chunk: Chunk, src_chunk: Chunk) -> None:
        require_at(dst_chunk, self.rank, "destination")
        require_at(src_chunk, self.rank, "source")
        require_equal(src_chunk, "source", dst_chunk, "destination")

    def copy(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Copy chunks of this rank."""
        self._require_copy(dst_chunk, src_chunk)
        by = blocks_of(tb, tb_group)
        get_program()._builder.copy(self.rank, dst_chunk, src_chunk, by)

    def unpack_packets(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Wait for the packets at ``src_chunk``, in scratch, and copy their data."""
        self._require_copy(dst_chunk, src_chunk)
        require_scratch(src_chunk, "source")
        by = blocks_of(tb, tb_group)
        get_program()._builder.unpack_packets(self.rank, dst_chunk, src_chunk, by)

    def copy_packets(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Copy data to packets at ``dst_chunk``, in scratch."""
        self._require_copy(dst_chunk, src_chunk)
        require_scratch(dst_chunk, "destination")
        by = blocks_of(tb, tb_group)
        get_program()._builder.copy_packets(self.rank, dst_chunk, src_chunk, by)

    def reduce(
        self,
        src_chunk: Chunk,
        other_chunks: Sequence[Chunk],
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
        packet: bool = False,
    ) -> None:
        """Reduce ``src_chunk`` with the others, to ``dst_chunk`` or in place.

        ``packet``: the others are packets in scratch; wait for them.
        """
        if dst_chunk is None:
            dst_chunk = src_chunk
        self._require_copy(dst_chunk, src_chunk)
        if len(other_chunks) == 0:
            raise ProgramError("there is nothing to reduce the source with")
        for chunk in other_chunks:
            require_at(chunk, self.rank, "other source")
            require_equal(src_chunk, "source", chunk, "other source")
            if packet:
                require_scratch(chunk, "other source")
        get_program()._builder.reduce(
            self.rank,
            src_chunk,
            other_chunks,
            dst_chunk,
            reduce_op,
            packet,
            blocks_of(tb, tb_group),
        )

    def barrier(self, tb_list: Sequence[int]) -> None:
        """Make thread blocks of this rank wait for each other. One alone: its threads do."""
        if len(tb_list) == 0:
            raise ProgramError("a barrier needs a thread block")
        get_program()._builder.barrier(self.rank, list(tb_list))


class Buffer(BaseBuffer):
    """More scratch of a rank."""

    def __init__(self, rank: int, size: int) -> None:
        """Enlarge the rank's scratch by ``size`` chunks."""
        require_rank(rank)
        start = get_program()._builder.scratch(rank, size)
        super().__init__(rank, BufferType.scratch, start, size)
        get_program()._scratch_chunks[rank] = self.size


class Semaphore:
    """A counting semaphore of a rank, for its thread blocks."""

    def __init__(self, rank: int, initial_value: int) -> None:
        """Make a semaphore whose counter starts at ``initial_value`` in every run."""
        require_rank(rank)
        self.rank = rank
        self.initial_value = initial_value
        self.id = get_program()._next_id("semaphore", rank)
        self._handle = get_program()._builder.semaphore(rank, initial_value)

    def acquire(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Wait until the counter is above zero, then subtract one."""
        get_program()
        self._handle.acquire(tb, data_sync)

    def release(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Add one to the counter."""
        get_program()
        self._handle.release(tb, data_sync)
