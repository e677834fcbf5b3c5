"""Megatron-Core's RemoteCopyService over Banyan's parts."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from megatron.core.resharding.nvshmem_copy_service.service import (
    RemoteCopyService as MegatronRemoteCopyService,
)

from banyan.integrations.megatron._agree import on_all

from .core import GPUResourceManager, KernelLauncher, PipelineExecutor
from .memory import DoubleBufferManager
from .planning import GPUExecutionPlanner


class RemoteCopyService(MegatronRemoteCopyService):  # type: ignore[misc]
    """Sends and receives of bytes between ranks, in a pipeline of batches.

    Requests, segments, batches and their iterations are Megatron-Core's. Register sends and
    receives, call ``schedule``, then ``run`` as often as the tensors are to move.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Make the parts. ``group``: the ranks, by default of the default group."""
        super().__init__()
        self._group = group
        self.gpu_resources = GPUResourceManager()
        self.buffer_manager = DoubleBufferManager()
        self.kernel_launcher = KernelLauncher()
        self.gpu_planner = GPUExecutionPlanner()

    def init(self, log_level: str = "INFO") -> None:
        """Open the world and allocate the slots. Collective. ``log_level`` is ignored."""
        resources = self.gpu_resources
        resources.init(group=self._group)
        self.buffer_manager.world = resources.world
        self.buffer_manager.device = resources.device
        self.buffer_manager.allocate()
        self.kernel_launcher.load_kernels()
        self.kernel_launcher.set_streams(resources.pack_stream, resources.unpack_stream)
        self.pipeline_executor: Any = PipelineExecutor(
            self.kernel_launcher, self.buffer_manager, self.my_pe
        )
        self.pipeline_executor.set_streams(
            resources.pack_stream,
            resources.unpack_stream,
            resources.send_stream,
            resources.copy_stream,
            resources.torch_pack_stream_wrapper,
            resources.torch_unpack_stream_wrapper,
            resources.torch_send_stream_wrapper,
            resources.torch_copy_stream_wrapper,
        )

    def schedule(self) -> None:
        """Plan the registered requests. Collective.

        Raises ValueError on all ranks if a request of one rank is wrong.
        """
        world = self.gpu_resources.world
        if world is None:
            raise RuntimeError("RemoteCopyService: schedule() before init()")
        self._segment_tasks()
        workloads = self.workload_packer.pack_workloads(self.send_requests, self.n_pes)
        options = {} if self._group is None else {"group": self._group}
        batches, summaries = self.comm_scheduler.build_schedule(
            workloads, self.my_pe, self.n_pes, **options
        )
        self.num_iterations = self.comm_scheduler.num_iterations
        self.iter_schedules = self._prepare_iter_schedules(
            batches, workloads, summaries, self.num_iterations
        )
        buffers = self.buffer_manager
        on_all(
            world,
            lambda: self.gpu_planner.create_gpu_plans(
                self.iter_schedules, buffers.send_slots, buffers.recv_slots, self.receive_requests
            ),
        )
        events = self.gpu_resources.create_events()
        self.pack_events, self.unpack_events, self.barrier_events = events
        self.pipeline_executor.set_events(*events)

    def run(self) -> None:
        """Move everything that is scheduled, and wait for it. Collective."""
        if not self.initialized or self.iter_schedules is None:
            raise RuntimeError("RemoteCopyService: run() before schedule()")
        self.pipeline_executor.execute_pipeline(self.iter_schedules, self.num_iterations)
        self.pipeline_executor.process_self_moves(self.send_requests, self.receive_requests)

    def finalize(self) -> None:
        """Free the schedules and the slots. Collective."""
        self.clear_requests()
        if self.pipeline_executor is not None:
            self.pipeline_executor.close()
        if self.gpu_resources.world is not None:
            self.gpu_resources.world.barrier()  # no peer uses the slots any more
        self.buffer_manager.free()
        self.gpu_resources.finalize()
