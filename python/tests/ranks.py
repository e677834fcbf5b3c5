"""Runs functions in several processes that open one world."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import banyan

CONTEXT = multiprocessing.get_context("fork")
#: Seconds that ranks may take to end when another has failed.
AFTER_FAILURE = 20


class Failed(Exception):
    """Some ranks raised an exception or ended."""


class Ranks:
    """Processes that call ``play(rank, pipe)``."""

    def __init__(self, count: int, play: Callable[[int, Connection], None]) -> None:
        self.pipes, self.processes = [], []
        for rank in range(count):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_answer, args=(play, rank, theirs))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def results(self, timeout: float) -> list[Any]:
        """Return the values that ``play`` returns, and require that all processes end."""
        results: list[Any] = [None] * len(self.pipes)
        failures: list[str] = []
        deadline = time.monotonic() + timeout
        left = {pipe: rank for rank, pipe in enumerate(self.pipes)}
        while left:
            ready = set(wait(left, max(0, deadline - time.monotonic())))
            for pipe in [one for one in left if one in ready] or list(left):
                rank = left.pop(pipe)
                try:
                    good, value = pipe.recv() if ready else (False, "no answer in time")
                except (EOFError, ConnectionError):
                    good, value = False, "the process ended"
                results[rank] = value
                if good:
                    continue
                failures.append(f"rank {rank}: {value}")
                print(failures[-1], file=sys.stderr, flush=True)
                # The others wait for the rank that failed.
                deadline = min(deadline, time.monotonic() + AFTER_FAILURE)
        for process in self.processes:
            process.join(AFTER_FAILURE)
            if process.is_alive():
                process.kill()
                failures.append(f"process {process.pid} did not end")
            elif process.exitcode != 0:
                failures.append(f"process {process.pid} ended with {process.exitcode}")
        if failures:
            raise Failed("\n".join(failures))
        return results


def _answer(play: Callable[[int, Connection], Any], rank: int, pipe: Connection) -> None:
    try:
        pipe.send((True, play(rank, pipe)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    pipe.close()


def _play(
    count: int, fn: Callable[..., Any], args: tuple[Any, ...], rank: int, pipe: Connection
) -> Any:
    if rank == 0:
        unique_id = banyan.UniqueId()
        pipe.send(bytes(unique_id))
    else:
        unique_id = banyan.UniqueId.from_bytes(pipe.recv())
    if fn.__name__.startswith("raw_"):
        return fn(rank, count, unique_id, *args)
    with banyan.World(rank, count, unique_id=unique_id, timeout=60) as world:
        return fn(world, *args)


def run(count: int, fn: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
    """Call ``fn(world, *args)`` on ``count`` ranks and return the results.

    A function whose name begins with ``raw_`` opens its world itself:
    ``fn(rank, count, id, *args)``.
    """

    ranks = Ranks(count, functools.partial(_play, count, fn, args))
    identity = ranks.pipes[0].recv()
    for pipe in ranks.pipes[1:]:
        pipe.send(identity)
    return ranks.results(timeout)


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
        new = f"{self._path(key)}.{os.getpid()}"  # several ranks may set a key
        with open(new, "w") as file:
            file.write(value)
        os.rename(new, self._path(key))

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


class FolderComm:
    """An mpi4py communicator for MSCCL++'s CommGroup, whose ranks share a folder."""

    def __init__(self, folder: str, rank: int, size: int) -> None:
        self.store, self.rank, self.size = FileStore(folder), rank, size

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def bcast(self, value: Any, root: int) -> Any:
        if self.rank == root:
            self.store.set("bcast", pickle.dumps(value).hex())
        return pickle.loads(bytes.fromhex(self.store.get("bcast").decode()))


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
