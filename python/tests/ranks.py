"""Runs functions in several processes that open one world."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import banyan

CONTEXT = multiprocessing.get_context("fork")


class Failed(Exception):
    """Some ranks raised an exception or ended."""


def _play(
    fn: Callable[..., Any], rank: int, count: int, pipe: Connection, args: tuple[Any, ...]
) -> None:
    try:
        unique_id = None
        if rank == 0:
            unique_id = banyan.UniqueId()
            pipe.send(bytes(unique_id))
        else:
            unique_id = banyan.UniqueId.from_bytes(pipe.recv())
        if fn.__name__.startswith("raw_"):
            result = fn(rank, count, unique_id, *args)
        else:
            with banyan.World(rank, count, unique_id=unique_id, timeout=60) as world:
                result = fn(world, *args)
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    pipe.close()


def run(count: int, fn: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
    """Call ``fn(world, *args)`` on ``count`` ranks and return the results.

    A function whose name begins with ``raw_`` opens its world itself:
    ``fn(rank, count, id, *args)``.
    """
    pipes, processes = [], []
    for rank in range(count):
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_play, args=(fn, rank, count, theirs, args))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    identity = pipes[0].recv()
    for pipe in pipes[1:]:
        pipe.send(identity)
    results, failures = [], []
    for rank, pipe in enumerate(pipes):
        try:
            good, value = pipe.recv() if pipe.poll(timeout) else (False, "no answer in time")
        except (EOFError, ConnectionError):
            good, value = False, "the process ended"
        results.append(value)
        if not good:
            failures.append(f"rank {rank}: {value}")
    for process in processes:
        process.join(timeout)
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


class FileStore:
    """A key-value store in a folder, with the methods that stores of PyTorch have."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, key.encode().hex())

    def set(self, key: str, value: str) -> None:
        with open(self._path(key) + ".new", "w") as file:
            file.write(value)
        os.rename(self._path(key) + ".new", self._path(key))

    def get(self, key: str) -> bytes:
        while not os.path.exists(self._path(key)):
            time.sleep(0.001)
        with open(self._path(key), "rb") as file:
            return file.read()

    def add(self, key: str, amount: int) -> int:
        path = self._path(key)
        value = amount + (int(self.get(key)) if os.path.exists(path) else 0)
        self.set(key, str(value))
        return value


def open_side(
    rank: int, folder: str, trainers: int, engines: int
) -> tuple[banyan.World, FileStore, bool]:
    """Open the world of the trainers (the lowest ranks) or of the engines."""
    store = FileStore(folder)
    trains = rank < trainers
    size = trainers if trains else engines
    own = rank if trains else rank - trainers
    prefix = "trainer" if trains else "engine"
    return banyan.World.from_store(store, own, size, prefix=prefix, timeout=60), store, trains
