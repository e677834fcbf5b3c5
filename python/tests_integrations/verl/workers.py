"""Ray workers of the tests: verl's own, with weights that follow from name, index and version."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import torch
from streams import is_equal, value
from tests.checkpoint_engine.test_utils import (
    CheckpointEngineWorkerTest,
    MockServerAdapter,
    TrainingWorkerTest,
)
from torch.distributed.tensor import DTensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.import_utils import import_external_libs


class Trainer(TrainingWorkerTest):
    """A worker of verl with its FSDP engine. verl's test class reads no custom_backend_module."""

    def __init__(self, config: Any, checkpoint_engine_config: Any) -> None:
        import_external_libs(checkpoint_engine_config.custom_backend_module)
        if not torch.cuda.is_available():  # verl asks for NCCL even then
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
        super().__init__(config, checkpoint_engine_config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_version(self, version: int) -> None:
        """Change all parameters."""
        self.reset()
        for name, one in self.engine.module.state_dict().items():
            whole = value(name, one.dtype, one.shape, version)
            if one.is_floating_point():  # no NaNs, which a cast would change
                whole = whole.nan_to_num(0.5, 0.25, 0.125).clamp(-8, 8)
            if isinstance(one, DTensor):
                from torch.distributed.tensor import distribute_tensor

                whole = distribute_tensor(whole, one.device_mesh, one.placements)
                one._local_tensor.copy_(whole._local_tensor)
            else:
                one.copy_(whole)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def use_shards(self, wanted: bool) -> None:
        """Send the engine's shards, not the whole weights that it gathers."""
        self.shards = wanted

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def die_at(self, rank: int) -> None:
        """Kill one trainer in the middle of its next update."""
        self.dying = rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_at(self, rank: int, way: str) -> None:
        """Let one trainer raise, or be killed, in its next update before it sends."""
        self.failing = way if torch.distributed.get_rank() == rank else ""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: Any = None, mode: str = "auto") -> None:
        if getattr(self, "failing", ""):
            await asyncio.sleep(1)  # the others wait for it
            if self.failing == "dies":
                self.kill()
            self.failing = ""
            raise RuntimeError("no memory for the whole weights")
        if getattr(self, "shards", False):
            await self.checkpoint_engine.send_weights(self.engine, global_steps)
            return
        weights, _ = self.engine.get_per_tensor_param()
        if getattr(self, "dying", -1) == torch.distributed.get_rank():
            weights = (one for i, one in enumerate(weights) if i != 5 or self.kill())
        await self.checkpoint_engine.send_weights(weights, global_steps)

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def counts(self) -> tuple[int, int]:
        stream = self.checkpoint_engine.stream
        return stream.planned, stream.runs


class Adapter(MockServerAdapter):
    """Keeps what a server would load."""

    fails = False
    failure = ""

    async def update_weights(self, weights: AsyncIterator[Any], **kwargs: Any) -> None:
        self.steps = kwargs["global_steps"]
        try:
            async for name, weight in weights:
                if self.fails:
                    raise RuntimeError("the loader refuses")
                self.received_weights[name] = weight.clone()
        except Exception as error:
            self.failure = str(error)
            raise


class Rollout(CheckpointEngineWorkerTest):
    """verl's rollout worker."""

    def __init__(self, rollout_config: Any, model_config: Any, **kwargs: Any) -> None:
        from verl.checkpoint_engine import CheckpointEngineWorker

        adapter = Adapter(rollout_config, model_config)
        CheckpointEngineWorker.__init__(self, rollout_config, model_config, adapter)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def compare(self, version: int, dtype: Any) -> int:
        """Compare what arrived with the version, and poison it."""
        adapter = self.server_adapter
        assert adapter.steps == version
        for name, got in adapter.received_weights.items():
            made = value(name, dtype, got.shape, version)
            wanted = made.nan_to_num(0.5, 0.25, 0.125).clamp(-8, 8).to(got.dtype)
            assert is_equal(got, wanted), f"{name} of version {version}"
        count = len(adapter.received_weights)
        adapter.received_weights = {}
        for buffer in self.checkpoint_engine.stream._buffers:
            if buffer is not None:
                buffer.fill_(0xAB)
        return count

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def forget(self) -> None:
        """Forget the error of the last update."""
        self.server_adapter.failure = ""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def failure(self) -> str:
        """Return the error of the update, once it has one."""
        while not self.server_adapter.failure:
            await asyncio.sleep(0.1)
        found: str = self.server_adapter.failure
        return found

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def refuse(self, wanted: bool) -> None:
        self.server_adapter.fails = wanted
