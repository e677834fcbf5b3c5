"""Banyan for Megatron-Core: a copy service for its resharding, and a reshard without its buffers.

``swap_model_weights(source, target, refit_method=BanyanCopyService())`` keeps Megatron-Core's plan
and its executor. ``banyan_reshard(source, target)`` replaces both, and writes in place.
"""

from __future__ import annotations

from ._models import banyan_reshard, model_layout
from ._service import BanyanCopyService

__all__ = ["BanyanCopyService", "banyan_reshard", "model_layout"]
