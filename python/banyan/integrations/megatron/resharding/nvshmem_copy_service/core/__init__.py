"""Streams, copies between tensors and slots, and the pipeline over them."""

from __future__ import annotations

from .gpu_resource_manager import GPUResourceManager
from .kernel_launcher import KernelLauncher
from .pipeline_executor import PipelineExecutor

__all__ = ["GPUResourceManager", "KernelLauncher", "PipelineExecutor"]
