"""The program that is being written, and the checks that calls share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._errors import ProgramError
from .thread_block_group import ThreadBlockGroup
from .types import BufferType, Chunk

if TYPE_CHECKING:
    from .program import CollectiveProgram

_current: CollectiveProgram | None = None


def set_program(program: CollectiveProgram | None) -> None:
    """Make a program the one that calls add to."""
    global _current
    _current = program


def get_program() -> CollectiveProgram:
    """Return the program of the enclosing ``with``."""
    if _current is None:
        raise ProgramError("there is no program here: use `with CollectiveProgram(...)`")
    return _current


def require_rank(rank: int, what: str = "rank") -> None:
    """Raise unless the program has the rank."""
    ranks = get_program().num_ranks
    if not 0 <= rank < ranks:
        raise ProgramError(f"{what} {rank} is out of range: the program has {ranks} ranks")


def require_at(chunk: Chunk, rank: int, what: str) -> None:
    """Raise unless the chunk is of the rank."""
    if chunk.rank != rank:
        raise ProgramError(f"the {what} is a chunk of rank {chunk.rank}, not of rank {rank}")


def require_equal(a: Chunk, a_name: str, b: Chunk, b_name: str) -> None:
    """Raise unless both have the same number of chunks."""
    if a.size != b.size:
        raise ProgramError(f"the {a_name} has {a.size} chunks, the {b_name} {b.size}")


def require_scratch(chunk: Chunk, what: str) -> None:
    """Raise unless the chunk, of packets, lies in scratch."""
    if chunk.buffer != BufferType.scratch:
        raise ProgramError(
            f"the {what} is packets, which lie in scratch, but it is in rank {chunk.rank}'s "
            f"{chunk.buffer.name}"
        )


def blocks_of(tb: int | None, tb_group: ThreadBlockGroup | None) -> int | Sequence[int]:
    """Return the thread block, or those of the group, that carry out an operation."""
    if tb is not None and tb_group is not None:
        raise ProgramError(f"both thread block {tb} and the group {tb_group.tb_list} are given")
    if tb is not None:
        return tb
    if tb_group is not None:
        return tb_group.tb_list
    raise ProgramError("neither a thread block (tb) nor a group of them (tb_group) is given")
