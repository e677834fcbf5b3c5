"""The limit of whole updates: copies of the same bytes by the same processes."""

from __future__ import annotations

import time

import torch


def copy_seconds(nbytes: int) -> float:
    """Copy so many bytes, and return the seconds."""
    source, into = (torch.ones(nbytes, dtype=torch.uint8) for _ in range(2))
    began = time.perf_counter()
    into.copy_(source)
    return time.perf_counter() - began
