"""Plans of the copies between tensors and slots."""

from __future__ import annotations

from .gpu_execution_planner import GPUExecutionPlanner

__all__ = ["GPUExecutionPlanner"]
