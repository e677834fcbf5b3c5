"""A whole update of a model of 1 GB from two trainers to two engines, as verl and NeMo-RL make it.

usage: torch_stream.py [--layers N] [--bucket MB]

All parts take turns in the same processes, on the host. Times are medians of several turns at the
slowest rank. Engines receive and drop the weights.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python/tests_torch"), str(ROOT / "bench")]

import torch
from groups import dist, run
from streams import gathered
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch_reshard import shapes
from turns import slowest

from banyan.integrations._stream import WeightStream

TRAINERS = ENGINES = 2
TURNS = 5
GOAL = 2.0


def broadcast(weights: dict[str, torch.Tensor], buffer: torch.Tensor, group: object) -> None:
    """Send buckets from rank 0 to the engines over Gloo, as verl's NCCL engine does over NCCL."""
    rank, filled = dist.get_rank(), 0

    def flush() -> None:
        nonlocal filled
        if rank == 0 or rank >= TRAINERS:
            dist.broadcast(buffer[:filled], 0, group=group)
        filled = 0

    for one in weights.values():
        data = one.view(-1).view(torch.uint8)
        for part in data.split(len(buffer)):
            if filled + len(part) > len(buffer):
                flush()
            if rank == 0:
                buffer[filled : filled + len(part)].copy_(part)
            filled += len(part)
    flush()


def measure(rank: int, layers: int, bucket: int) -> dict[str, float]:
    """Time the parts at all ranks."""
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (TRAINERS,))
    group = dist.new_group([0, *range(TRAINERS, TRAINERS + ENGINES)])
    is_trainer = rank < TRAINERS
    whole = {
        name: torch.full(shape, 0.5, dtype=torch.bfloat16)
        for name, (shape, _) in shapes(layers).items()
    }
    nbytes = sum(one.nbytes for one in whole.values())
    shards = {}
    if is_trainer:
        for name, one in whole.items():
            part = torch.chunk(one, TRAINERS)[rank].clone()
            shards[name] = DTensor.from_local(
                part, mesh, [Shard(0)], run_check=False, shape=one.shape, stride=one.stride()
            )
    streams = [WeightStream(bucket, device="cpu", timeout=120) for _ in range(2)]
    for stream in streams:
        unique_id, keep = WeightStream.topology(
            gathered(stream.describe(leads=rank == 0)), TRAINERS
        )
        stream.join(rank, TRAINERS + ENGINES, TRAINERS, unique_id, keep)

    async def update(stream: WeightStream, weights: dict[str, torch.Tensor]) -> None:
        if is_trainer:
            await stream.send(weights.items())
            return
        async for _ in stream.receive():
            pass

    buffer = torch.zeros(bucket, dtype=torch.uint8)
    halves = (
        torch.ones(nbytes // 2, dtype=torch.uint8),
        torch.ones(nbytes // 2, dtype=torch.uint8),
    )
    calls: dict[str, Callable[[], object]] = {
        "whole": lambda: asyncio.run(update(streams[0], whole)),
        "shards": lambda: asyncio.run(update(streams[1], shards)),
        "gloo": lambda: broadcast(whole, buffer, group),
        # Each of the four ranks copies half of the model: the engines get two models together.
        "copies": lambda: halves[0].copy_(halves[1]),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(TURNS + 1):
        for name, call in calls.items():
            dist.barrier()
            began = time.perf_counter()
            call()
            taken = slowest(time.perf_counter() - began)
            if turn > 0:
                times[name].append(taken)
    return {"nbytes": nbytes, **{name: statistics.median(one) for name, one in times.items()}}


def main() -> int:
    """Print the times, and whether the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--bucket", type=int, default=128, help="MiB")
    options = parser.parse_args()
    found = run(
        TRAINERS + ENGINES,
        measure,
        options.layers,
        options.bucket << 20,
        backend="gloo",
        timeout=500,
    )[0]
    ratio = found["gloo"] / found["whole"]
    print(
        f"{found['nbytes'] / 1e6:.0f} MB from {TRAINERS} trainers to {ENGINES} engines, buckets of "
        f"{options.bucket} MiB",
        f"  whole weights at both trainers     {found['whole'] * 1e3:7.0f} ms",
        f"  shards of both trainers            {found['shards'] * 1e3:7.0f} ms",
        f"  rank 0 broadcasts buckets (Gloo)   {found['gloo'] * 1e3:7.0f} ms, {ratio:.1f} times as "
        f"long  goal {GOAL:.0f}: {'met' if ratio >= GOAL else 'MISSED'}",
        f"  limit: all ranks copy these bytes  {found['copies'] * 1e3:7.0f} ms",
        sep="\n",
    )
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
