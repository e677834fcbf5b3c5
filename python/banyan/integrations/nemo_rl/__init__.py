"""Banyan for NeMo-RL: a checkpoint engine, selected by its class path.

Set ``policy.generation.refit_transport`` to
``banyan.integrations.nemo_rl:BanyanCheckpointEngine``.
"""

from __future__ import annotations

from ._engine import BanyanCheckpointEngine

__all__ = ["BanyanCheckpointEngine"]
