"""Windows: memory that a communicator knows."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from ... import Memory, World, adopt
from ._types import as_tensor

_numbers = itertools.count(1)
_windows: dict[int, Window] = {}


class Window:
    """Registered memory of a rank. ``Communicator.register_window`` makes it.

    On GPUs of one machine, the other ranks map the memory. It stays allocated until ``close``.
    """

    def __init__(self, world: World, buffer: Any) -> None:
        """Register the memory of a dense tensor. Collective over the world."""
        tensor = as_tensor(buffer, "buffer")
        if tensor is None or not tensor.is_contiguous():
            raise ValueError("a window needs a dense tensor")
        self._tensor: torch.Tensor | None = tensor
        self._memory: Memory | None = None
        if tensor.device.type == "cuda" and world.node_count == 1:
            self._memory = adopt(world, tensor)
        self._handle = next(_numbers)
        _windows[self._handle] = self

    @property
    def is_valid(self) -> bool:
        """True until it is closed."""
        return self._tensor is not None

    @property
    def handle(self) -> int:
        """Number of the window; 0 after ``close``."""
        return self._handle if self.is_valid else 0

    @property
    def size(self) -> int:
        """Bytes."""
        return 0 if self._tensor is None else self._tensor.numel() * self._tensor.element_size()

    @property
    def user_ptr(self) -> int:
        """Address. Raises RuntimeError after ``close``."""
        if self._tensor is None:
            raise RuntimeError("the window was closed")
        return self._tensor.data_ptr()

    def close(self) -> None:
        """Forget the memory. Local."""
        _windows.pop(self._handle, None)
        self._tensor = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def require_inside(window: Any, *tensors: torch.Tensor | None) -> None:
    """Raise unless one of a rank's parts lies in the window. A rank without parts has any window.

    ``window``: a Window or its number, or an object with ``user_ptr`` and ``size``.
    """
    if window is None:
        raise TypeError("window must be a registered NCCL window")
    found = _windows.get(window) if isinstance(window, int) else window
    if not hasattr(found, "user_ptr") or not hasattr(found, "size"):
        raise TypeError(
            f"window: a Window or its handle is needed, not {window!r}: "
            "Communicator.register_window makes one"
        )
    assert found is not None
    first, last = found.user_ptr, found.user_ptr + found.size
    places = [
        (one.data_ptr(), one.data_ptr() + _reach_bytes(one))
        for one in tensors
        if one is not None and one.numel() > 0
    ]
    if places and not any(first <= start and end <= last for start, end in places):
        listed = ", ".join(f"{start:#x} to {end:#x}" for start, end in places)
        raise ValueError(f"the window has {first:#x} to {last:#x}, but the parts are at {listed}")


def _reach_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes from the first element of a tensor to the end of its last one."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((count - 1) * step for count, step in steps)) * tensor.element_size()
