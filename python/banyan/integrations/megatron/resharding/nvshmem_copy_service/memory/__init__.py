"""Slots of the pipeline."""

from __future__ import annotations

from .double_buffer_manager import DoubleBufferManager

__all__ = ["DoubleBufferManager"]
