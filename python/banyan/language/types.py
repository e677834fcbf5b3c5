"""Chunks, buffers and the choices that operations take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from .._errors import ProgramError


class _Choice(Enum):
    """A choice whose text is its value."""

    def __str__(self) -> str:
        return str(self.value)


class SyncType(_Choice):
    """Synchronization of a thread block's threads around an operation."""

    none = "none"
    before = "before"
    after = "after"
    both = "both"

    def _bits(self) -> int:
        return 2 * (self in (SyncType.after, SyncType.both)) + (
            self in (SyncType.before, SyncType.both)
        )

    def __or__(self, other: SyncType) -> SyncType:
        """Synchronize where either does."""
        return _SYNC_OF_BITS[self._bits() | other._bits()]

    def __and__(self, other: SyncType) -> SyncType:
        """Synchronize where both do."""
        return _SYNC_OF_BITS[self._bits() & other._bits()]

    def __xor__(self, other: SyncType) -> SyncType:
        """Synchronize where exactly one does."""
        return _SYNC_OF_BITS[self._bits() ^ other._bits()]


_SYNC_OF_BITS = [SyncType.none, SyncType.before, SyncType.after, SyncType.both]


class ReduceOperationType(_Choice):
    """Reduction of elements."""

    sum = "sum"
    min = "min"
    max = "max"
    prod = "prod"


class BufferType(_Choice):
    """Buffer of a rank."""

    input = "i"
    output = "o"
    scratch = "s"


class ChannelType(_Choice):
    """Kind of a channel."""

    port = "port"
    memory = "memory"
    switch = "switch"
    none = "none"


class ReplicationPolicy(_Choice):
    """How instances share chunks: each takes its own, or all use the same."""

    interleaved = "interleaved"
    none = "none"


@dataclass(unsafe_hash=True)
class Chunk:
    """Chunks [index, index + size) of a buffer of a rank."""

    rank: int
    buffer: BufferType
    index: int
    size: int

    def to_dict(self) -> dict[str, Any]:
        """Return the members, as plain values."""
        return {
            "rank": self.rank,
            "type": self.buffer.value,
            "index": self.index,
            "size": self.size,
        }


class BaseBuffer:
    """A buffer of a rank. Slices of it are chunks."""

    def __init__(self, rank: int, buffer_type: BufferType, offset: int, size: int) -> None:
        """Describe chunks [offset, offset + size) of the rank's buffer of this type."""
        self.rank = rank
        self.buffer_type = buffer_type
        self.offset = offset
        self.size = offset + size

    def __getitem__(self, key: slice) -> Chunk:
        """Return the chunks from ``start`` up to ``stop``, counted from the buffer's start."""
        if not isinstance(key, slice):
            raise TypeError(f"a buffer's chunks are a slice, not {type(key).__name__}")
        if key.step not in (None, 1):
            raise ValueError(f"chunks are contiguous: the slice has a step of {key.step}")
        start = 0 if key.start is None else key.start
        stop = self.size - self.offset if key.stop is None else key.stop
        if start < 0 or stop < 0:
            raise ValueError(f"chunks [{start}, {stop}): a negative index")
        if start > stop:
            raise ValueError(f"chunks [{start}, {stop}): the start is after the stop")
        if self.offset + stop > self.size:
            raise ProgramError(
                f"chunks [{start}, {stop}) are outside of rank {self.rank}'s "
                f"{self.buffer_type.name}, which has {self.size - self.offset} chunks"
            )
        return Chunk(self.rank, self.buffer_type, self.offset + start, stop - start)


@dataclass
class RankGroup:
    """The ranks of a switch channel."""

    size: int
    ranks: list[int]

    def to_dict(self) -> dict[str, Any]:
        """Return the members, as plain values."""
        return {"size": self.size, "ranks": self.ranks}
