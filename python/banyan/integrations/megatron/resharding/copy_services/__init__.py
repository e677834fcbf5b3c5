"""Copy services of Megatron-Core's resharding."""

from __future__ import annotations

from .base import CopyService

__all__ = ["CopyService"]
