"""Runs functions in several processes that form a process group of torch.distributed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed (make test-torch installs it)")
    sys.exit(77)
import torch.distributed as dist

import banyan.torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from ranks import Failed, Ranks, seed

torch.set_num_threads(1)
#: BANYAN_TEST_DEVICE=cuda puts the tensors of the tests on GPUs, which the ranks share.
DEVICE = os.environ.get("BANYAN_TEST_DEVICE", "cpu")
#: Before PyTorch 2.14, a backend in Python served all devices.
DEVICES_DIFFER = not issubclass(banyan.torch.ProcessGroupBanyan, dist.ProcessGroup)


def run(
    count: int, fn: Callable[..., Any], *args: Any, backend: str = "banyan", timeout: float = 200
) -> list[Any]:
    """Call ``fn(rank, *args)`` on ``count`` ranks of a process group, and return the results."""

    def play(rank: int, _: Connection) -> Any:
        if DEVICE == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
            torch.set_default_device("cuda")
        store = dist.FileStore(os.path.join(folder, "store"), count)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=count, timeout=timedelta(seconds=60)
        )
        result = fn(rank, *args)
        dist.destroy_process_group()
        return result

    with tempfile.TemporaryDirectory() as folder:
        return Ranks(count, play).results(timeout)


__all__ = ["DEVICE", "DEVICES_DIFFER", "Failed", "banyan", "dist", "run", "seed", "torch"]
