"""Errors that all ranks raise together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ... import World

Result = TypeVar("Result")


def on_all(world: World, call: Callable[[], Result]) -> Result:
    """Return ``call()``. If it raises ValueError or TypeError on a rank, raise on all. Collective.

    The other ranks raise ValueError, with the number of that rank and its message.
    """
    mine: Exception | None = None
    try:
        result = call()
    except (TypeError, ValueError) as error:
        mine = error
    told = world.gather(b"" if mine is None else str(mine).encode() or b"error")
    if mine is not None:
        raise mine
    for rank, text in enumerate(told):
        if text:
            raise ValueError(f"rank {rank}: {text.decode()}")
    return result
