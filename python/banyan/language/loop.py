"""Loops over units of bytes."""

from __future__ import annotations

from .context import get_program

__all__ = ["LoopIterationContext", "get_program"]


class LoopIterationContext:
    """A loop: its operations, in each thread block by itself, work unit by unit."""

    def __init__(self, unit: int, num_chunks: int) -> None:
        """Describe a loop over ``num_chunks`` chunks in units of ``unit`` bytes."""
        self.unit = unit
        self.num_chunks = num_chunks

    def __enter__(self) -> LoopIterationContext:
        """Begin the loop. Loops do not nest."""
        get_program()._begin_loop(self.unit, self.num_chunks)
        return self

    def __exit__(self, *exception: object) -> None:
        """End the loop."""
        get_program()._end_loop()
