"""The executor of Megatron-Core's resharding, under its names: ``megatron.core.resharding``.

A program keeps its planner and changes one import. Megatron-Core 0.16.1 lacks some of these names.
"""

from __future__ import annotations

from .execution import execute_reshard_plan
from .transforms import ReshardTransform
from .utils import ReshardPlan, TransferOp

__all__ = ["ReshardPlan", "ReshardTransform", "TransferOp", "execute_reshard_plan"]
