"""A whole update of a model of 1 GB through verl, beside the method of its own engine.

    PYTHONPATH=build/python:python/tests_torch:python/tests_integrations/verl \
        build/venv-verl/bin/python bench/verl_update.py [--layers N] [--bucket MB]

verl's manager, Ray workers and FSDP2 engine run on the host: two trainers, and two replicas of one
rank. The time is that of ``CheckpointEngineManager.update_weights``, the median of several turns.
Each replica copies the weights into parameters that exist. No engine computes a token.
"""

# verl makes the methods of groups of workers when it runs, and its decorators have no types.
# mypy: disable-error-code="attr-defined, has-type, no-untyped-call, untyped-decorator"
from __future__ import annotations

import argparse
import asyncio
import pickle
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from jobs import MODULE, Job, connect, save_model

# isort: split
import ray
import torch
import torch.distributed as dist
import transformers
import workers
from copies import copy_seconds
from verl.checkpoint_engine import CheckpointEngineRegistry
from verl.checkpoint_engine.base import CheckpointEngine, merge_weight_chunks, split_weight_chunks
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.import_utils import import_external_libs

TURNS = 4


class GlooEngine(CheckpointEngine):  # type: ignore[misc]
    """The method of verl's NCCL engine, over Gloo.

    Trainer rank 0 copies weights to a bucket, and broadcasts it while it fills the other one. The
    other trainers only take part in the gathering. Group and buckets are kept.
    """

    def __init__(self, bucket_size: int, is_master: bool) -> None:
        """Allocate the buckets."""
        self.bucket_size, self.is_master = bucket_size, is_master
        self.store: Any = None
        self.group: Any = None
        self.count = 0
        self.buffers = [torch.zeros(bucket_size, dtype=torch.uint8) for _ in range(2)]

    def prepare(self) -> Any:
        """Return the port of the store, at the master."""
        if self.is_master and self.store is None:
            self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return self.store.port if self.is_master else None

    @classmethod
    def build_topology(cls, trainers: int, replicas: int, metadata: list[Any]) -> Any:
        """Put trainer rank 0 and the replicas into one group."""

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            count = len(ranks)
            return {"rank": ranks, "size": [1 + replicas] * count, "port": metadata[:1] * count}

        return arguments([0] + [-1] * (trainers - 1)), arguments(list(range(1, 1 + replicas)))

    def init_process_group(self, rank: int, size: int, port: int) -> None:
        """Join the group, once."""
        if rank >= 0 and self.group is None:
            if self.store is None:
                self.store = dist.TCPStore("127.0.0.1", port, is_master=False)
            self.group = dist.ProcessGroupGloo(self.store, rank, size, timedelta(seconds=120))

    def finalize(self) -> None:
        """Keep everything."""

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Send the weights in buckets."""
        if self.group is None:
            for _ in weights:
                pass
            return
        metas: list[Any] = []
        filled, work = 0, None

        async def flush(is_last: bool) -> Any:
            self.store.set(f"bucket {self.count}", pickle.dumps((metas, filled, is_last)))
            data = self.buffers[self.count % 2][:filled]
            self.count += 1
            if work is not None:
                await asyncio.to_thread(work.wait)
            return self.group.broadcast([data], dist.BroadcastOptions())

        async for meta, data in split_weight_chunks(weights, self.bucket_size):
            if filled + len(data) > self.bucket_size:
                work = await flush(False)
                metas, filled = [], 0
            self.buffers[self.count % 2][filled : filled + len(data)].copy_(data)
            meta.offset = filled
            metas.append(meta)
            filled += len(data)
        work = await flush(True)
        await asyncio.to_thread(work.wait)

    def _next(self) -> tuple[list[Any], torch.Tensor, bool]:
        metas, filled, is_last = pickle.loads(self.store.get(f"bucket {self.count}"))
        data = self.buffers[self.count % 2][:filled]
        self.count += 1
        self.group.broadcast([data], dist.BroadcastOptions()).wait()
        return metas, data, is_last

    async def _chunks(self) -> AsyncIterator[Any]:
        coming = asyncio.create_task(asyncio.to_thread(self._next))
        is_last = False
        while not is_last:
            metas, data, is_last = await coming
            if not is_last:
                coming = asyncio.create_task(asyncio.to_thread(self._next))
            for meta in metas:
                yield meta, data[meta.offset : meta.offset + meta.chunk_size]

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Any]:
        """Yield names and weights."""
        async for one in merge_weight_chunks(self._chunks(), self.bucket_size):
            yield one


class Trainer(workers.Trainer):
    """A trainer with both engines."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def use_gloo(self, wanted: bool) -> None:
        """Choose the engine of the next update."""
        if not hasattr(self, "engines"):
            ours = self.checkpoint_engine
            self.engines = ours, GlooEngine(ours.stream.bucket_bytes, dist.get_rank() == 0)
        self.checkpoint_engine = self.engines[wanted]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def gather(self) -> None:
        """Make the whole weights, as verl does for an update, and drop them."""
        for _ in self.engine.get_per_tensor_param()[0]:
            pass

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def copy(self, nbytes: int) -> float:
        """Copy so many bytes, and return the seconds."""
        return copy_seconds(nbytes)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nbytes(self) -> int:
        """Return the bytes of the whole weights."""
        return sum(one.nbytes for _, one in self.engine.get_per_tensor_param()[0])


class Adapter(workers.Adapter):
    """Loads weights into parameters that exist."""

    async def update_weights(self, weights: AsyncIterator[Any], **kwargs: Any) -> None:
        """Copy each weight to its parameter."""
        async for name, weight in weights:
            if name not in self.received_weights:
                self.received_weights[name] = torch.empty_like(weight)
            self.received_weights[name].copy_(weight)


class Rollout(workers.Rollout):
    """A replica with both engines."""

    def __init__(self, rollout_config: Any, model_config: Any, **kwargs: Any) -> None:
        """Load weights by the adapter above."""
        super().__init__(rollout_config, model_config, **kwargs)
        self.server_adapter = Adapter(rollout_config, model_config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def use_gloo(self, wanted: bool) -> None:
        """Choose the engine of the next update."""
        if not hasattr(self, "engines"):
            ours = self.checkpoint_engine
            self.engines = ours, GlooEngine(ours.stream.bucket_bytes, False)
        self.checkpoint_engine = self.engines[wanted]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def copy(self, nbytes: int) -> float:
        """Copy so many bytes, and return the seconds."""
        return copy_seconds(nbytes)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def total(self) -> float:
        """Return a number that follows from all weights."""
        received = self.server_adapter.received_weights.values()
        return float(sum(one.double().abs().sum().item() for one in received))


def measure(folder: str, bucket: int) -> None:
    """Let all ways take turns, and print their times."""
    job = Job(folder, bucket, Trainer, Rollout, model_dtype="bf16")
    import_external_libs(MODULE)
    ours = CheckpointEngineRegistry.get("banyan")
    nbytes = job.trainers.nbytes()[0]

    def choose(gloo: bool, shards: bool) -> None:
        job.trainers.use_gloo(gloo)
        job.rollout.use_gloo(gloo)
        job.trainers.use_shards(shards)
        job.manager.backend_cls = GlooEngine if gloo else ours

    ways = {"shards": (False, True), "whole": (False, False), "gloo": (True, False)}
    times: dict[str, list[float]] = {name: [] for name in (*ways, "gather", "copies")}
    for turn in range(TURNS + 1):
        totals = set()
        for name, way in ways.items():
            choose(*way)
            began = time.perf_counter()
            job.manager.update_weights(global_steps=1)
            times[name].append(time.perf_counter() - began)
            if turn == 0:
                totals |= set(job.rollout.total())
        assert len(totals) <= 1, f"the ways give different weights: {totals}"
        began = time.perf_counter()
        job.trainers.gather()
        times["gather"].append(time.perf_counter() - began)
        copied = ray.get(job.trainers.copy(nbytes // 2) + job.rollout.copy(nbytes // 2))
        times["copies"].append(max(copied))
    found = {name: statistics.median(one[1:]) * 1e3 for name, one in times.items()}
    print(
        f"{nbytes / 1e6:.0f} MB from 2 trainers (FSDP2) to 2 replicas, buckets of {bucket} MiB",
        f"  Banyan, shards                         {found['shards']:6.0f} ms",
        f"    the first update, which joins        {times['shards'][0] * 1e3:6.0f} ms",
        f"  Banyan, whole weights, gathered by verl{found['whole']:6.0f} ms",
        f"    the gathering alone                  {found['gather']:6.0f} ms",
        f"  rank 0 broadcasts whole weights (Gloo) {found['gloo']:6.0f} ms, "
        f"{found['gloo'] / found['shards']:.1f} times as long as shards",
        f"  limit: all ranks copy these bytes once {found['copies']:6.0f} ms",
        sep="\n",
    )


def main() -> None:
    """Make the model and the workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--bucket", type=int, default=128, help="MiB")
    options = parser.parse_args()
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=options.layers,
        num_attention_heads=16,
        num_key_value_heads=16,
    )
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, config)
        connect()
        try:
            measure(folder, options.bucket)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
