"""Stand-ins for the GPU that Megatron-Core's executor and services ask for, on machines without."""

from __future__ import annotations

import contextlib
from typing import Any

from groups import torch

_empty = torch.empty


def _empty_without_pins(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
    return _empty(*args, **options)


class Stream:
    """A stream whose work is done at once."""

    def wait_stream(self, stream: object) -> None:
        pass

    wait_event = wait_stream

    def synchronize(self) -> None:
        pass


def stand_in() -> None:
    """Replace streams, pinned memory and synchronization in this process, if it has no GPU."""
    if torch.cuda.is_available():
        return
    torch.empty = _empty_without_pins
    torch.cuda.Stream = Stream  # type: ignore[misc]
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.current_stream = lambda device=None: Stream()
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[return-value, assignment]
    torch.cuda.synchronize = lambda device=None: None
