"""A whole update of engines of vLLM with a model of 1 GB through verl.

    PYTHONPATH=build/python:python/tests_torch:python/tests_integrations/verl \
        build/venv-verl/bin/python bench/verl_update.py [--layers N] [--bucket MB]

verl's manager, Ray workers, FSDP2 engine, adapter of servers and extension of vLLM's workers run on
the host: two trainers, and two replicas with an engine of one rank each. The time is from the call
of ``CheckpointEngineManager.update_weights`` to the first token of both engines, the median of
several turns. The peer is the method of verl's NCCL engine, over Gloo.
"""

# verl makes the methods of groups of workers when it runs, and its decorators have no types.
# mypy: disable-error-code="attr-defined, has-type, no-untyped-call, untyped-decorator"
from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import generation

# isort: split
import jobs
import ray
from gloo_buckets import GlooBuckets
from verl.checkpoint_engine import CheckpointEngineWorker
from verl.checkpoint_engine.base import CheckpointEngine
from verl.single_controller.base.decorator import Dispatch, register
from whole_updates import Copying, Updates, Way, main, negate, save_versions


class GlooEngine(CheckpointEngine):  # type: ignore[misc]
    """The method of verl's NCCL engine, over Gloo.

    The other trainers only take part in the gathering.
    """

    def __init__(self, bucket_size: int, is_master: bool) -> None:
        """Allocate the buckets."""
        self.is_master = is_master
        self.buckets = GlooBuckets(bucket_size)

    def prepare(self) -> Any:
        """Return the port of the store, at the master."""
        return self.buckets.open() if self.is_master else None

    @classmethod
    def build_topology(cls, trainers: int, replicas: int, metadata: list[Any]) -> Any:
        """Put trainer rank 0 and the replicas into one group."""

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            count = len(ranks)
            return {"rank": ranks, "size": [1 + replicas] * count, "port": metadata[:1] * count}

        return arguments([0] + [-1] * (trainers - 1)), arguments(list(range(1, 1 + replicas)))

    def init_process_group(self, rank: int, size: int, port: int) -> None:
        """Join the group, once."""
        if rank >= 0:
            self.buckets.join(rank, size, port)

    def finalize(self) -> None:
        """Keep everything."""

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Send the weights in buckets."""
        if self.is_master:
            self.buckets.send(weights)
        else:
            for _ in weights:
                pass

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Any]:
        """Yield names and weights."""
        for batch in self.buckets.receive():
            for one in batch:
                yield one


class Choosing(Copying):
    """A worker with both engines."""

    checkpoint_engine: Any

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def use_gloo(self, wanted: bool) -> None:
        """Choose the engine of the next update."""
        if not hasattr(self, "engines"):
            ours = self.checkpoint_engine
            self.engines = ours, GlooEngine(ours.stream.bucket_bytes, ours.is_master)
        self.checkpoint_engine = self.engines[wanted]

    copy = register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)(Copying.copy)


class Trainer(Choosing, generation.Trainer):
    """A trainer with both engines."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def change(self) -> None:
        """Change to the other version of the model."""
        negate(self.engine.module)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def gather(self) -> None:
        """Make the whole weights, as verl does for an update, and drop them."""
        for _ in self.engine.get_per_tensor_param()[0]:
            pass

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nbytes(self) -> int:
        """Return the bytes of the whole weights."""
        return sum(one.nbytes for _, one in self.engine.get_per_tensor_param()[0])


class Rollout(Choosing, CheckpointEngineWorker):  # type: ignore[misc]
    """A replica with both engines."""


def measure(at: Path, layers: int, bucket: int) -> None:
    """Compare all ways, with buckets of so many MiB."""
    folders = save_versions(at, layers)
    jobs.save_tokenizer(str(folders[0]))
    with generation.start_engine(at / "other", folders[1]) as other:
        expected = [other.call("first_token")]
    with (
        generation.start_engine(at / "one", folders[0]) as one,
        generation.start_engine(at / "two", folders[0]) as two,
    ):
        engines = [one, two]
        expected.insert(0, one.call("first_token"))
        assert two.call("first_token") == expected[0]
        jobs.connect()
        job = generation.make_job(
            engines, folders[0], Trainer, Rollout, megabytes=bucket, model_dtype="bf16"
        )
        nbytes = job.trainers.nbytes()[0]
        ours = job.manager.backend_cls

        def choose(gloo: bool, shards: bool) -> None:
            job.trainers.use_gloo(gloo)
            job.rollout.use_gloo(gloo)
            job.trainers.use_shards(shards)
            job.manager.backend_cls = GlooEngine if gloo else ours

        def update() -> None:
            job.manager.update_weights(global_steps=1)

        def copy() -> float:
            ranks = job.trainers.copy(nbytes // 2) + job.rollout.copy(nbytes // 2)
            return max(ray.get(ranks))

        Updates(engines, expected, job.trainers.change).compare(
            f"{nbytes / 1e6:.0f} MB from 2 trainers (FSDP2) to 2 engines of vLLM, buckets of "
            f"{bucket} MiB",
            [
                Way("Banyan, shards", update, partial(choose, False, True)),
                Way("Banyan, whole weights", update, partial(choose, False, False)),
                Way("rank 0 broadcasts (Gloo)", update, partial(choose, True, False)),
            ],
            {"the gathering of whole weights": job.trainers.gather},
            copy,
        )


if __name__ == "__main__":
    main(measure, __doc__, ray.shutdown, bucket=128)
