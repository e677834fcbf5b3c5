"""Runs functions in several processes that form a process group of torch.distributed."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed (make test-torch installs it)")
    sys.exit(77)
import torch.distributed as dist

import banyan.torch

torch.set_num_threads(1)
#: BANYAN_TEST_DEVICE=cuda puts the tensors of the tests on GPUs, which the ranks share.
DEVICE = os.environ.get("BANYAN_TEST_DEVICE", "cpu")
#: Before PyTorch 2.14, a backend in Python served all devices.
DEVICES_DIFFER = not issubclass(banyan.torch.ProcessGroupBanyan, dist.ProcessGroup)
#: Seconds that ranks may take to end when another has failed.
AFTER_FAILURE = 20
CONTEXT = multiprocessing.get_context("fork")


class Failed(Exception):
    """Some ranks raised an exception or ended."""


def _play(
    fn: Callable[..., Any],
    rank: int,
    count: int,
    backend: str,
    path: str,
    pipe: Connection,
    args: tuple[Any, ...],
) -> None:
    try:
        if DEVICE == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
            torch.set_default_device("cuda")
        store = dist.FileStore(path, count)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=count, timeout=timedelta(seconds=60)
        )
        result = fn(rank, *args)
        dist.destroy_process_group()
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    pipe.close()


def run(
    count: int, fn: Callable[..., Any], *args: Any, backend: str = "banyan", timeout: float = 200
) -> list[Any]:
    """Call ``fn(rank, *args)`` on ``count`` ranks of a process group, and return the results."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(count):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=_play,
                args=(fn, rank, count, backend, os.path.join(folder, "store"), theirs, args),
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        results, failures = [], []
        deadline = time.monotonic() + timeout
        for rank, pipe in enumerate(pipes):
            if failures:  # the others wait for the rank that failed
                deadline = min(deadline, time.monotonic() + AFTER_FAILURE)
            try:
                ready = pipe.poll(max(0, deadline - time.monotonic()))
                good, value = pipe.recv() if ready else (False, "no answer in time")
            except (EOFError, ConnectionError):
                good, value = False, "the process ended"
            results.append(value)
            if not good:
                failures.append(f"rank {rank}: {value}")
        for process in processes:
            process.join(AFTER_FAILURE)
            if process.is_alive():
                process.kill()
                failures.append(f"process {process.pid} did not end")
            elif process.exitcode != 0:
                failures.append(f"process {process.pid} ended with {process.exitcode}")
    if failures:
        raise Failed("\n".join(failures))
    return results


def seed() -> int:
    """Return the seed of this run (TEST_SEED, or a random one) and print it."""
    value = int(os.environ.get("TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"TEST_SEED={value}", flush=True)
    return value


__all__ = ["DEVICE", "DEVICES_DIFFER", "Failed", "banyan", "dist", "run", "seed", "torch"]
