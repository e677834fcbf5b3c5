"""Megatron-Core's NVSHMEM copy service on Banyan, without NVSHMEM and CuPy, and on the host too.

``NVSHMEMCopyService`` of Megatron-Core runs on it with one import changed, in
``megatron/core/resharding/copy_services/nvshmem_copy_service.py``::

    from banyan.integrations.megatron.resharding.nvshmem_copy_service import RemoteCopyService

Segments, batches and their schedule are Megatron-Core's own.
"""

from __future__ import annotations

from .core import GPUResourceManager, KernelLauncher, PipelineExecutor
from .memory import DoubleBufferManager
from .planning import GPUExecutionPlanner
from .service import RemoteCopyService

__all__ = [
    "DoubleBufferManager",
    "GPUExecutionPlanner",
    "GPUResourceManager",
    "KernelLauncher",
    "PipelineExecutor",
    "RemoteCopyService",
]
