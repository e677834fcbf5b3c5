"""The backend "banyan" of torch.distributed beside Gloo, on the host: all-reduces, and training.

usage: torch_process_group.py [--ranks N ...]

Both take turns in the same processes. Times are medians of several turns at the slowest rank.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

import banyan.torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/tests_torch"))
from test_training import train

GOAL = 2.0
TURNS = 7


def measure(group: dist.ProcessGroup, nbytes: int) -> float:
    """Return the microseconds of an all-reduce at the slowest rank."""
    tensor = torch.zeros(nbytes // 4)
    calls = max(2, min(200, (8 << 20) // nbytes))
    dist.all_reduce(tensor, group=group)
    dist.barrier(group)
    began = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    mine = torch.tensor((time.perf_counter() - began) / calls * 1e6)
    dist.all_reduce(mine, dist.ReduceOp.MAX, group=group)
    return mine.item()


def compare(rank: int, ranks: int, path: str, missed: torch.Tensor) -> None:
    """Print the table, at rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "banyan", store=dist.FileStore(path, ranks), rank=rank, world_size=ranks
    )
    ours = dist.group.WORLD
    gloo = dist.new_group(backend="gloo")
    for shift in range(3, 27, 2 if ranks == 2 else 3):
        nbytes = 1 << shift
        times = [(measure(ours, nbytes), measure(gloo, nbytes)) for _ in range(TURNS)]
        a, b = (statistics.median(column) for column in zip(*times, strict=True))
        if rank == 0:
            verdict = "" if b >= GOAL * a else f"  MISSED: {GOAL:.0f} x"
            missed[0] += bool(verdict)
            print(
                f"all-reduce {nbytes:10d} bytes: banyan {a:9.1f} us, gloo {b:9.1f} us,"
                f" {b / a:5.2f} x{verdict}",
                flush=True,
            )
    dist.destroy_process_group()


def compare_training(rank: int, ranks: int, path: str, missed: torch.Tensor) -> None:
    """Train with both backends in turn, and print the times, at rank 0."""
    torch.set_num_threads(1)
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(TURNS):  # the first one imports what PyTorch needs
        for backend in ("banyan", "gloo"):
            store = dist.FileStore(f"{path}.{turn}.{backend}", ranks)
            dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
            for how in ("ddp", "fsdp"):
                train(rank, how, 1, False)
                dist.barrier()
                began = time.perf_counter()
                train(rank, how, 1, False)
                dist.barrier()
                seconds.setdefault((how, backend), []).append(time.perf_counter() - began)
            dist.destroy_process_group()
    for how in ("ddp", "fsdp"):
        a, b = (statistics.median(seconds[how, name][1:]) for name in ("banyan", "gloo"))
        if rank == 0:
            verdict = "" if a <= b else "  MISSED: not slower"
            missed[0] += bool(verdict)
            print(
                f"20 steps of a small transformer, {how}, {ranks} ranks: banyan {a * 1e3:.0f} ms,"
                f" gloo {b * 1e3:.0f} ms, {b / a:.2f} x{verdict}",
                flush=True,
            )


def main() -> int:
    """Print all figures. Return 1 if a goal is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    ranks_of = parser.parse_args().ranks
    print(f"PyTorch {torch.__version__}, {os.cpu_count()} processors, libbanyan {banyan.version()}")
    missed = torch.zeros(1, dtype=torch.int64).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        for ranks in ranks_of:
            print(f"{ranks} ranks; goal {GOAL:.0f} x Gloo at every size")
            torch.multiprocessing.start_processes(
                compare, (ranks, f"{folder}/{ranks}", missed), ranks, start_method="fork"
            )
        torch.multiprocessing.start_processes(
            compare_training, (4, f"{folder}/training", missed), 4, start_method="fork"
        )
    return int(missed[0] > 0)


if __name__ == "__main__":
    sys.exit(main())
