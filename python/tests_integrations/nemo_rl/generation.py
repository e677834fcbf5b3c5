"""A real vLLM engine behind NeMo-RL's worker extension, and policies with models of transformers.

The engine is a process of its own, forked before Ray starts. On the host vLLM computes with weights
as loaded, since NeMo-RL loads weights into a running engine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "vllm"))

import environment  # noqa: F401  # before PyTorch

# isort: split
import jobs
import ray
import torch
from nemo_rl.models.generation.vllm.checkpoint_engine import VllmCheckpointEngineRpcMixin
from processes import Process, Remote
from shards import fill, load_sharded
from workers import Policy, without_gpu

EXTENSION = "extension.Extension"


class ModelPolicy(Policy):
    """A policy worker with a model of transformers, sharded by FSDP2."""

    def load(self, folder: Path) -> None:
        self.model = load_sharded(folder, self.mesh.size())

    def fill(self, version: int) -> None:
        fill(self.model, version)

    def _checkpoint_engine_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.state_dict().items()

    def prepare_refit_info(self) -> dict[str, Any]:
        return {name: (one.shape, one.dtype) for name, one in self.model.state_dict().items()}


class RemoteEngine(VllmCheckpointEngineRpcMixin):  # type: ignore[misc]
    """NeMo-RL's calls of an engine that is in another process."""

    def __init__(self, path: Path) -> None:
        remote = Remote(path)

        def collective_rpc(method: str, args: tuple[Any, ...] = ()) -> Any:
            return remote.call("collective_rpc", method, args=args)

        self.llm = SimpleNamespace(collective_rpc=collective_rpc)


def start_engine(path: Path, model: Path, tp: int, extension: str = EXTENSION) -> Process:
    """Start an engine of vLLM whose workers have NeMo-RL's extension."""
    import unpacked  # noqa: F401
    from engine import Engine

    without_gpu()
    return Process(path, Engine, model, tp, worker_extension_cls=extension)


def make_job(
    engine: Path, model: Path, policy_class: type = ModelPolicy, **options: Any
) -> jobs.Job:
    """Make a job of two policies and an engine that has started."""
    actor = ray.remote(num_cpus=0)(RemoteEngine).remote(engine)
    job = jobs.Job(2, 0, policy_class, engine=actor, **options)
    ray.get([one.load.remote(model) for one in job.policies])
    return job
