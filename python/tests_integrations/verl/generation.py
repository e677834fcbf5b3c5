"""Real vLLM engines behind verl's adapter of its servers and its extension of vLLM's workers.

An engine is a process of its own, forked before Ray starts. On the host vLLM computes with weights
as loaded, since verl loads weights into a running engine. verl's HTTP server is not there: an actor
of its name passes the adapter's calls on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "vllm"))

import environment  # before PyTorch

# isort: split
import jobs
import ray
import workers
from processes import Process, Remote
from verl.checkpoint_engine import CheckpointEngineWorker
from verl.single_controller.base.decorator import Dispatch, register

#: verl looks for the version of "vllm"; the package of vLLM for CPUs has another name.
_info = Path(environment.FOLDER) / "vllm-0.32.0.dist-info"
_info.mkdir()
(_info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")


class Trainer(workers.Trainer):
    """A trainer whose model may compute."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fill(self, version: int) -> None:
        """Change all parameters."""
        from shards import fill

        self.reset()
        fill(self.engine.module, version)


class Server:
    """The calls of a server that verl's adapter makes."""

    def __init__(self, path: Path) -> None:
        self.engine = Remote(path)
        self.steps: int | None = None

    def collective_rpc(
        self, method: str, timeout: Any = None, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self.engine.call("collective_rpc", method, args=args, kwargs=kwargs)

    def clear_kv_cache(self) -> None:
        self.engine.call("reset_prefix_cache")

    def set_global_steps(self, steps: int) -> None:
        self.steps = steps

    def global_steps(self) -> int | None:
        return self.steps


def _name(worker: Any, job: str, replica: int) -> None:
    """Give a worker of vLLM the names of its job and replica, as verl's server does."""
    os.environ |= {"VERL_RAY_JOB_ID": job, "VERL_REPLICA_RANK": str(replica)}


def start_engine(path: Path, model: Path) -> Process:
    """Start an engine of vLLM whose worker has verl's extension."""
    import unpacked  # noqa: F401
    from engine import Engine

    extension = "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension"
    return Process(path, Engine, model, 1, worker_extension_cls=extension)


def make_job(
    engines: list[Any],
    model: Path,
    trainer: type = Trainer,
    replica: type = CheckpointEngineWorker,
    **options: Any,
) -> jobs.Job:
    """Make a job of two trainers, and a replica for each engine that has started."""
    servers = []
    for i, engine in enumerate(engines):
        engine.call("collective_rpc", _name, args=(ray.get_runtime_context().get_job_id(), i))
        actor = ray.remote(num_cpus=0)(Server)
        servers.append(actor.options(name=f"vllm_server_{i}_0").remote(engine.path))
    job = jobs.Job(str(model), trainer=trainer, replica=replica, **options)
    job.servers = servers
    return job
