"""Groups of thread blocks."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ThreadBlockGroup"]


class ThreadBlockGroup:
    """Thread blocks of a rank that divide the bytes of an operation."""

    def __init__(self, tb_list: Sequence[int]) -> None:
        """Make a group of different thread blocks."""
        self.tb_list = list(tb_list)
        self._tb_id = {tb: i for i, tb in enumerate(self.tb_list)}
        if len(self._tb_id) != len(self.tb_list):
            twice = next(tb for i, tb in enumerate(self.tb_list) if self._tb_id[tb] != i)
            raise ValueError(f"thread block {twice} is in the group twice: {self.tb_list}")

    def get_internal_id(self, tb: int) -> int:
        """Return the index of a thread block in the group."""
        if tb not in self._tb_id:
            raise ValueError(f"thread block {tb} is not in the group {self.tb_list}")
        return self._tb_id[tb]

    def numtb(self) -> int:
        """Return the number of thread blocks."""
        return len(self.tb_list)
