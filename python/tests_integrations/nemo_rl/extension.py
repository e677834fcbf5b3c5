"""NeMo-RL's extension of vLLM's workers, where there may be no GPU."""

from __future__ import annotations

from nemo_rl.models.generation.vllm.vllm_backend import (
    VllmInternalWorkerExtension,
    VllmInternalWorkerExtensionWithCheckpointEngine,
)
from vllm.v1.worker.cpu_worker import CPUWorker
from workers import MEMORY_BYTES

# vLLM refuses extensions with names of its workers. NeMo-RL was written for vLLM 0.25, whose
# workers lacked this method of the same purpose.
if hasattr(CPUWorker, "synchronize_device"):
    del VllmInternalWorkerExtension.synchronize_device


class Extension(VllmInternalWorkerExtensionWithCheckpointEngine):  # type: ignore[misc]
    """The extension, with a device of a given size."""

    def checkpoint_engine_total_memory_bytes(self) -> int:
        return MEMORY_BYTES
