"""Buckets of weights that one rank broadcasts over Gloo: the method of verl's and NeMo-RL's peers.

Rank 0 has whole weights. It copies them to a bucket, and broadcasts it while it fills the other
one. The other ranks receive a bucket while they load the one before. Group and buckets are kept.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class GlooBuckets:
    """One rank's end."""

    def __init__(self, bucket_bytes: int) -> None:
        """Allocate the buckets."""
        self.store: Any = None
        self.group: Any = None
        self.count = 0
        self.buffers = [torch.zeros(bucket_bytes, dtype=torch.uint8) for _ in range(2)]

    def open(self) -> int:
        """Make the store, at rank 0, and return its port."""
        if self.store is None:
            self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port: int = self.store.port
        return port

    def join(self, rank: int, size: int, port: int) -> None:
        """Join the group, once."""
        if self.group is None:
            if self.store is None:
                self.store = dist.TCPStore("127.0.0.1", port, is_master=False)
            self.group = dist.ProcessGroupGloo(self.store, rank, size, timedelta(seconds=120))

    def _broadcast(self, filled: int) -> Any:
        data = self.buffers[self.count % 2][:filled]
        self.count += 1
        return self.group.broadcast([data], dist.BroadcastOptions())

    def send(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Send the weights. None may be larger than a bucket."""
        held: list[Any] = []
        filled, work = 0, None

        def flush(is_last: bool) -> None:
            nonlocal filled, work
            self.store.set(f"bucket {self.count}", pickle.dumps((held, filled, is_last)))
            if work is not None:
                work.wait()
            work = self._broadcast(filled)
            held.clear()
            filled = 0

        for name, weight in weights:
            if filled + weight.nbytes > len(self.buffers[0]):
                flush(False)
            into = self.buffers[self.count % 2][filled : filled + weight.nbytes]
            into.view(weight.dtype).view(weight.shape).copy_(weight)
            held.append((name, weight.dtype, weight.shape, filled))
            filled += weight.nbytes
        flush(True)
        work.wait()  # type: ignore[attr-defined]

    def _next(self) -> tuple[list[tuple[str, torch.Tensor]], bool]:
        held, filled, is_last = pickle.loads(self.store.get(f"bucket {self.count}"))
        buffer = self.buffers[self.count % 2]
        self._broadcast(filled).wait()
        weights = []
        for name, dtype, shape, start in held:
            data = buffer[start : start + shape.numel() * dtype.itemsize]
            weights.append((name, data.view(dtype).view(shape)))
        return weights, is_last

    def receive(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yield the weights of each bucket. They are valid until the next one."""
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(self._next)
            is_last = False
            while not is_last:
                weights, is_last = coming.result()
                if not is_last:
                    coming = thread.submit(self._next)
                yield weights
