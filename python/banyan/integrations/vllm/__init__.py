"""Banyan for vLLM: layouts of its parameters, learned from its own loader."""

from __future__ import annotations

from ._learn import learn, learned_layout

__all__ = ["learn", "learned_layout"]
