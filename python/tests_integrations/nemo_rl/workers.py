"""Ray actors of the tests: NeMo-RL's mixins of policy and vLLM workers, with weights of our own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import ray
import torch
from nemo_rl.models.generation.vllm.checkpoint_engine import (
    VllmCheckpointEngineMixin,
    VllmCheckpointEngineRpcMixin,
)
from nemo_rl.models.policy.workers.checkpoint_engine import (
    DTensorCheckpointEngineSendMixin,
    PolicyCheckpointEngineMixin,
)
from streams import Weight, generate, is_equal, meshes, value

MEMORY_BYTES = 200 << 20  # of a device without a GPU; buckets are a share of it


def without_gpu() -> None:
    """Let NeMo-RL synchronize streams, as it does after loading, if there are none."""
    if not torch.cuda.is_available():
        stream = SimpleNamespace(synchronize=lambda: None)
        torch.cuda.current_stream = lambda *_: stream  # type: ignore


def join_group(rank: int, size: int, path: str) -> None:
    store = torch.distributed.FileStore(path, size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    without_gpu()


class Policy(DTensorCheckpointEngineSendMixin, PolicyCheckpointEngineMixin):  # type: ignore[misc]
    """A policy worker."""

    cpu_offload = False

    def __init__(self, rank: int, size: int, path: str) -> None:
        join_group(rank, size, path)
        self.rank, self.mesh, self.dies = rank, meshes(size), False

    def set(self, weights: list[Weight], version: int, dies: bool = False) -> None:
        self.weights, self.version, self.dies = weights, version, dies

    def _checkpoint_engine_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        for i, one in enumerate(generate(self.weights, self.version, self.mesh)):
            if self.dies and i == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            yield one

    def prepare_refit_info(self) -> dict[str, Any]:
        return {name: (shape, dtype) for name, dtype, shape, _ in self.weights}

    async def checkpoint_engine_rpc(self, checkpoint_method: str, method_kwargs: Any = None) -> Any:
        if checkpoint_method == "checkpoint_engine_total_memory_bytes":
            return MEMORY_BYTES
        return await super().checkpoint_engine_rpc(checkpoint_method, method_kwargs)

    def counts(self) -> tuple[int, int]:
        return self.checkpoint_engine.stream.planned, self.checkpoint_engine.stream.runs


class Base:
    """What NeMo-RL's extension of a vLLM worker has below the mixin."""

    def _load_hf_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.got += [(name, tensor.clone()) for name, tensor in weights]

    def _load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self._load_hf_weights(weights)

    def _maybe_process_fp8_kv_cache(self) -> None:
        pass


class Worker(VllmCheckpointEngineMixin, Base):  # type: ignore[misc]
    """A worker inside vLLM, which keeps what its model would load."""

    layout: Any = None

    def __init__(self, rank: int, size: int, path: str) -> None:
        join_group(rank, size, path)
        self.got: list[tuple[str, torch.Tensor]] = []

    def set_layout(self, layout: Any) -> None:
        self.layout = layout

    def checkpoint_engine_total_memory_bytes(self) -> int:
        return MEMORY_BYTES

    def _checkpoint_engine_weight_layout(self) -> Any:
        return self.layout

    def _load_sharded_expert_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.got += [(name, tensor.clone()) for name, tensor in weights]

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        # Ray has an event loop in an actor with coroutines; vLLM's workers have none.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(getattr(self, method), *args).result()

    def compare(self, weights: list[Weight], version: int) -> int:
        """Compare what arrived, and poison it."""
        from nemo_rl.models.generation.vllm.refit_layout import select_hf_weight_for_vllm_target

        got, self.got = dict(self.got), []
        for buffer in self.checkpoint_engine.stream._buffers:
            if buffer is not None:
                buffer.fill_(0xAB)
        wanted = {}
        for name, dtype, shape, _ in weights:
            whole = value(name, dtype, shape, version)
            if self.layout is not None:
                whole = select_hf_weight_for_vllm_target(name, whole, target_layout=self.layout)
            if whole is not None:
                wanted[name] = whole
        assert got.keys() == wanted.keys(), got.keys() ^ wanted.keys()
        for name, tensor in wanted.items():
            assert is_equal(got[name], tensor), f"{name} of version {version}"
        return sum(tensor.nbytes for tensor in got.values())


class Engine(VllmCheckpointEngineRpcMixin):  # type: ignore[misc]
    """A vLLM engine with its workers."""

    def __init__(self, workers: list[Any]) -> None:
        def collective_rpc(method: str, args: tuple[Any, ...] = ()) -> list[Any]:
            return ray.get([worker.call.remote(method, args) for worker in workers])

        self.llm = SimpleNamespace(collective_rpc=collective_rpc)


class Group:
    """NeMo-RL's worker group, for actors that are there already."""

    def __init__(self, workers: list[Any]) -> None:
        self.workers = workers

    def run_all_workers_single_data(self, method: str, **kwargs: Any) -> list[Any]:
        kwargs.pop("run_rank_0_only_axes", None)
        return [getattr(one, method).remote(**kwargs) for one in self.workers]

    def run_all_workers_multiple_data(
        self, method: str, *, method_args: list[Any], common_kwargs: Any, **_: Any
    ) -> list[Any]:
        return [
            getattr(one, method).remote(method_args=args, **common_kwargs)
            for one, args in zip(self.workers, method_args, strict=True)
        ]
