"""Calls that take turns on ranks of torch.distributed, and their times at the slowest rank."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/tests_torch"))

from groups import dist, run, torch

__all__ = ["run", "slowest", "timed", "turns"]


def slowest(seconds: float) -> float:
    """Return the longest time of all ranks."""
    mine = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    return float(mine)


def timed(call: Callable[[], object], each: int = 1) -> float:
    """Return the seconds of a call at the slowest rank, of several in a row."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(each):
        call()
    return slowest((time.perf_counter() - began) / each)


def turns(
    calls: dict[str, Callable[[], object]], rounds: int = 7, each: int = 1
) -> dict[str, float]:
    """Return the median seconds of calls that take turns, without their first ones."""
    times = [{name: timed(call, each) for name, call in calls.items()} for _ in range(rounds + 1)]
    return {name: statistics.median(one[name] for one in times[1:]) for name in calls}
