"""Groups of calls, and the submission of one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ... import Invalid, World
from ._comm import world_and_ranks
from ._errors import reshard_error, reshard_errors
from ._plans import Reader, run


class _Entry(NamedTuple):
    """A recorded call."""

    world: World
    ranks: Mapping[int, int] | None
    stream: Any
    read: Reader


class _Groups(threading.local):
    depth = 0

    def __init__(self) -> None:
        self.calls: list[_Entry] = []


_groups = _Groups()


def submit(comm: Any, stream: Any, read: Reader) -> None:
    """Run or record a call. A call that cannot be read raises on all ranks."""
    with reshard_errors():
        world, ranks = world_and_ranks(comm)
        if _groups.depth > 0:
            _groups.calls.append(_Entry(world, ranks, stream, read))
        else:
            run(world, ranks, [read], stream)


def in_group() -> bool:
    """True while this thread records a group."""
    return _groups.depth > 0


def group_start() -> None:
    """Record the calls of this thread from now on, until the matching ``group_end``."""
    _groups.depth += 1


def group_end() -> None:
    """End a group. The end of the outermost one moves all recorded tensors. Collective."""
    if _groups.depth == 0:
        raise reshard_error(Invalid("group_end without group_start"))
    _groups.depth -= 1
    if _groups.depth > 0:
        return
    calls, _groups.calls = _groups.calls, []
    while calls:
        world, ranks, stream, *_ = calls[0]
        together = [one for one in calls if one.world is world and one.stream is stream]
        calls = [one for one in calls if one.world is not world or one.stream is not stream]
        with reshard_errors():
            run(world, ranks, [one.read for one in together], stream)


def group_abort() -> None:
    """Forget the recorded calls, and end all groups of this thread."""
    _groups.depth, _groups.calls = 0, []


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Record the calls of a block, and move their tensors together at its end.

    The tensors of a group are planned as one reshard. All ranks make the same calls in it.
    """
    group_start()
    try:
        yield
    except BaseException:
        group_abort()
        raise
    group_end()
