"""Banyan for verl: a checkpoint engine, registered as ``banyan``.

Set ``checkpoint_engine.backend`` to ``banyan`` and ``checkpoint_engine.custom_backend_module`` to
``banyan.integrations.verl`` in the configuration of the rollout. verl imports this module in its
driver and in every worker.
"""

from __future__ import annotations

from ._engine import BanyanCheckpointEngine

__all__ = ["BanyanCheckpointEngine"]
