"""Worlds: opening, closing, errors, interrupts, the end of the interpreter."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import banyan
from ranks import Failed, FileStore, run


def control_plane(world: banyan.World) -> None:
    assert world.size == 4 and world.local_size == 4 and world.node_count == 1
    assert world.gather(bytes([world.rank]) * world.rank) == [bytes([r]) * r for r in range(4)]
    assert world.broadcast(b"from 2" if world.rank == 2 else None, root=2) == b"from 2"
    assert world.broadcast(b"", root=0) == b""
    world.barrier()
    assert world.timeout == 60
    world.timeout = 5
    assert world.timeout == 5
    world.timeout = math.inf
    assert world.timeout == math.inf
    world.timeout = None
    assert world.timeout == 60
    if world.rank % 2:
        sub = world.split([3, 1])
        assert sub.size == 2 and sub.rank == (0 if world.rank == 3 else 1)
        sub.barrier()
        sub.close()
    assert repr(world) == f"banyan.World(rank={world.rank}, size=4)"


def raw_errors(rank: int, count: int, unique_id: banyan.UniqueId) -> str:
    """Rank 1 may abort while the others still open the world, or are in any call."""
    world = None
    try:
        world = banyan.World(rank, count, unique_id=unique_id, timeout=60)
        wrongs: list[Callable[[], object]] = [
            lambda: world.node_of(4),
            lambda: world.broadcast(b"", root=4),
        ]
        for wrong in wrongs:
            try:
                wrong()
            except ValueError as error:
                assert "4" in str(error)
            else:
                raise AssertionError("no error")
        if world.rank == 1:
            world.abort("the test wants so")
        world.barrier()
    except banyan.Aborted as error:
        if world is None:
            return str(error)
        try:
            world.close()
        except banyan.Aborted:
            return str(error)
    raise AssertionError("no error")


def raw_store(rank: int, count: int, unique_id: banyan.UniqueId, folder: str) -> None:
    del unique_id
    store = FileStore(folder)
    for turn in range(2):  # a second world of the same store has another key
        with banyan.World.from_store(store, rank, count, timeout=60) as world:
            assert (world.rank, world.size, world.timeout) == (rank, count, 60)
            assert world.gather(bytes([rank, turn])) == [bytes([r, turn]) for r in range(count)]
    with banyan.World.from_store(store, rank, count, prefix="other") as world:
        world.barrier()
    try:
        banyan.World.from_store(store, 3, 3)
        raise AssertionError("no error")
    except ValueError as error:
        assert str(error) == "rank 3 is not in a world of 3 ranks", error
    if rank == 1:
        store.set("damaged/world 1", "ab" * 255 + "xy")
        try:
            banyan.World.from_store(store, rank, count, prefix="damaged")
            raise AssertionError("no error")
        except ValueError as error:
            assert str(error) == 'the store\'s value of "damaged/world 1" is not a unique id', error


def raw_exception(rank: int, count: int, unique_id: banyan.UniqueId) -> str:
    try:
        with banyan.World(rank, count, unique_id=unique_id, timeout=60) as world:
            if rank == 1:
                raise KeyError("lost")
            world.barrier()
    except (KeyError, banyan.Aborted) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


def raw_interrupt(rank: int, count: int, unique_id: banyan.UniqueId) -> tuple[str, float]:
    world = banyan.World(rank, count, unique_id=unique_id, timeout=60)
    if rank == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        if rank != 2:
            world.barrier()
        else:
            while True:
                world.check()
                time.sleep(0.01)
    except (KeyboardInterrupt, banyan.Aborted) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    raise AssertionError("no error")


def handler_that_returns(world: banyan.World) -> int:
    """A signal whose handler returns does not end a wait."""
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    if world.rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    if world.rank == 1:
        time.sleep(0.5)
    world.barrier()
    return len(seen)


def two_threads(world: banyan.World) -> str:
    errors: list[str] = []

    def other() -> None:
        try:
            world.barrier()
        except RuntimeError as error:
            errors.append(str(error))

    if world.rank == 0:
        thread = threading.Timer(0.2, other)
        thread.start()
        world.barrier()
        thread.join()
    else:
        time.sleep(0.5)
        world.barrier()
    return ";".join(errors)


def forgotten(world: banyan.World) -> None:
    """Python may forget objects at different times on different ranks."""
    first = banyan.Communicator(world)
    second = banyan.Communicator(world)
    if world.rank == 0:
        del first
    else:
        del second
    third = banyan.alloc(world, 1000)
    data = bytearray(4)
    banyan.Communicator(world).all_reduce(memoryview(data).cast("f"))
    assert third.nbytes == 1000


END = """
import sys, banyan
rank, count, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
world = banyan.World(rank, count, address="127.0.0.1", port=int(sys.argv[4]), timeout=30,
                     secret="00112233445566778899aabbccddeeff")
comm = banyan.Communicator(world)
memory = banyan.alloc(world, 64)
array = memory.array()
view = memoryview(array)
del memory, array
if how == "raise" and rank == 1:
    raise ValueError("on purpose")
if how == "views":
    sys.exit(0)
del view
if how == "raise":
    try:
        world.barrier()
    except banyan.Aborted as error:
        print(error)
"""


class WorldTest(unittest.TestCase):
    def test_control_plane(self) -> None:
        run(4, control_plane)

    def test_errors_are_exceptions_by_status(self) -> None:
        for message in run(4, raw_errors):
            self.assertIn("rank 1", message)
            self.assertIn("the test wants so", message)

    def test_exception_in_with_ends_the_world(self) -> None:
        messages = run(3, raw_exception)
        self.assertEqual(messages[1], "KeyError: 'lost'")
        for rank in (0, 2):
            self.assertIn("KeyError", messages[rank])
            self.assertIn("rank 1", messages[rank])

    def test_ctrl_c_ends_a_wait(self) -> None:
        results: list[Any] = run(3, raw_interrupt)
        self.assertTrue(results[1][0].startswith("KeyboardInterrupt"))
        for rank in (0, 2):
            self.assertIn("Aborted", results[rank][0])
        for _, seconds in results:
            self.assertLess(seconds, 10)

    def test_handler_that_returns_does_not_end_a_wait(self) -> None:
        self.assertEqual(run(2, handler_that_returns), [1, 0])

    def test_second_thread_is_refused(self) -> None:
        self.assertIn("another thread", run(2, two_threads)[0])

    def test_forgotten_objects_close_with_their_world(self) -> None:
        run(2, forgotten)

    def test_closed_world(self) -> None:
        world = banyan.World(0, 1, unique_id=banyan.UniqueId())
        world.close()
        world.close()
        self.assertFalse(world.is_open)
        with self.assertRaisesRegex(ValueError, "closed"):
            world.barrier()
        self.assertEqual(repr(world), "banyan.World(closed)")

    def test_arguments(self) -> None:
        with self.assertRaises(banyan.Invalid):
            banyan.World(rank=3, size=2)
        with self.assertRaisesRegex(ValueError, "256 bytes"):
            banyan.UniqueId.from_bytes(b"short")
        for timeout in (0, -1, math.nan):
            with self.assertRaisesRegex(ValueError, "timeout"):
                banyan.World(timeout=timeout)
        unique_id = banyan.UniqueId()
        self.assertEqual(bytes(banyan.UniqueId.from_bytes(bytes(unique_id))), bytes(unique_id))

    def test_end_of_the_interpreter(self) -> None:
        for number, how in enumerate(("normal", "raise", "views")):
            port = str(20000 + os.getpid() % 20000 + number)
            began = time.monotonic()
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-c", END, str(rank), "2", how, port],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(2)
            ]
            output = [process.communicate(timeout=100) for process in ranks]
            self.assertLess(time.monotonic() - began, 20, how)
            codes = [process.returncode for process in ranks]
            if how == "raise":  # rank 0 may be in any call when it learns of it
                self.assertEqual(codes[1], 1, output)
                self.assertIn("rank 1 aborted: ValueError: on purpose", "".join(output[0]))
            else:
                self.assertEqual((codes, output[1][1]), ([0, 0], ""), how)

    def test_ranks_meet_through_a_store(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(3, raw_store, folder)

    def test_failure_of_a_rank_reaches_the_test(self) -> None:
        with self.assertRaisesRegex(Failed, "rank 0"):
            run(1, lambda world: 1 / 0)


if __name__ == "__main__":
    unittest.main()
