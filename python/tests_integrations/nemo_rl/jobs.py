"""Jobs of NeMo-RL over Ray: its synchronizer and worker mixins, with Banyan as refit transport."""

from __future__ import annotations

import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

from source import folder

sys.path.insert(0, folder())
os.environ["PYTHONPATH"] = f"{sys.path[0]}:{os.environ.get('PYTHONPATH', '')}"
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray_start
from groups import DEVICE
from nemo_rl.weight_sync.checkpoint_engine_config import checkpoint_engine_refit_config
from nemo_rl.weight_sync.checkpoint_engine_weight_synchronizer import (
    CheckpointEngineWeightSynchronizer,
)
from streams import Weight
from workers import Engine, Group, Policy, Worker

TRANSPORT = "banyan.integrations.nemo_rl:BanyanCheckpointEngine"


def refit_config(transport: str = TRANSPORT, **options: Any) -> Any:
    """Return what NeMo-RL reads from a user's configuration."""
    return checkpoint_engine_refit_config(
        {
            "backend": "vllm",
            "refit_transport": transport,
            "refit_cfg": {
                transport: {
                    "update_weights_bucket_memory_ratio": 0.01,
                    "timeout": 30,
                    "device": DEVICE,
                    **options,
                }
            },
        }
    )


def connect() -> None:
    """Start Ray."""
    ray_start.connect(2)


class Job:
    """Policy workers, and one vLLM engine."""

    def __init__(
        self,
        policies: int,
        workers: int,
        policy_class: type = Policy,
        worker_class: type = Worker,
        engine: Any = None,
        **options: Any,
    ) -> None:
        """``engine``: an actor in place of one with workers of ``worker_class``."""
        self.folder = tempfile.TemporaryDirectory()
        actor = {"num_cpus": 0, "num_gpus": 0.1 if DEVICE == "cuda" else 0}
        policy, worker = (ray.remote(**actor)(one) for one in (policy_class, worker_class))
        paths = [os.path.join(self.folder.name, one) for one in ("policy", "vllm")]
        self.policies = [policy.remote(rank, policies, paths[0]) for rank in range(policies)]
        self.workers = [worker.remote(rank, workers, paths[1]) for rank in range(workers)]
        self.engine = engine or ray.remote(num_cpus=0)(Engine).remote(self.workers)
        self.sync = self.synchronizer(**options)

    def synchronizer(self, **options: Any) -> Any:
        """Return a synchronizer of NeMo-RL for these workers."""
        generation = SimpleNamespace(
            worker_group=Group([self.engine]),
            dp_size=1,
            cfg={"vllm_cfg": {"async_engine": False}},
            prepare_refit_info=lambda info: None,
        )
        return CheckpointEngineWeightSynchronizer(
            SimpleNamespace(worker_group=Group(self.policies)), generation, refit_config(**options)
        )

    def update(self, weights: list[Weight], version: int, dying: int = -1) -> list[int]:
        """Refit, and return the bytes that each worker received."""
        ray.get(
            [
                one.set.remote(weights, version, rank == dying)
                for rank, one in enumerate(self.policies)
            ]
        )
        self.sync.sync_weights()
        return ray.get([one.compare.remote(weights, version) for one in self.workers])

    def close(self) -> None:
        for one in [*self.policies, *self.workers, self.engine]:
            ray.kill(one)
        self.folder.cleanup()
