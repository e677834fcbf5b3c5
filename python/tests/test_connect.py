"""Worlds that are started apart and joined: reshards both ways, errors, interrupts, lifetimes."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any

import numpy as np

import banyan
from ranks import open_side, run

SHAPE = (12, 10)
SECRET = secrets.token_hex(16)
TRAINERS, ENGINES = 2, 3


def values(version: int) -> np.ndarray[Any, Any]:
    """The global tensor of a version; no two elements of any versions are equal."""
    return (np.arange(math.prod(SHAPE)).reshape(SHAPE) + 1000 * version).astype(np.float32)


def accept(listener: banyan.Listener) -> banyan.World:
    joined = listener.accept(60)
    assert joined is not None
    return joined


def reshard_both_ways(joined: banyan.World, trains: bool) -> None:
    """Rows at the trainers, columns at the engines: there, and back."""
    assert joined.listening_size == TRAINERS and joined.size == TRAINERS + ENGINES
    rows, columns = banyan.Layout(), banyan.Layout()
    if trains:
        mesh = banyan.Mesh((TRAINERS,))
        rows.add_sharded("weight", "float32", SHAPE, mesh, [banyan.Shard(0)], joined.rank)
    else:
        mesh = banyan.Mesh((ENGINES,), first_rank=TRAINERS)
        columns.add_sharded("weight", "float32", SHAPE, mesh, [banyan.Shard(1)], joined.rank)
    for source, destination, gives in ((rows, columns, trains), (columns, rows, not trains)):
        tensors = {t.name: np.full(t.shape, -1, t.dtype) for t in source.tensors}
        received = {t.name: np.full(t.shape, -2, t.dtype) for t in destination.tensors}
        with banyan.Reshard(source, destination, joined) as reshard:
            for version in range(1, 4):
                for piece in source.pieces:
                    tensors["weight"][...] = values(version)[piece.box.slices]
                reshard(tensors, received)
                for piece in destination.pieces:
                    np.testing.assert_array_equal(
                        received["weight"], values(version)[piece.box.slices]
                    )
        assert gives == bool(tensors) and gives != bool(received)


def raw_join(rank: int, count: int, unique_id: banyan.UniqueId, folder: str) -> tuple[int, int]:
    del unique_id, count
    world, store, trains = open_side(rank, folder, TRAINERS, ENGINES)
    places = set()
    if trains:
        with world.listen(SECRET, name="weights") as listener:
            assert listener.accept() is None
            assert listener.accept(0.05) is None
            if world.rank == 0:
                store.set("address", listener.address)
            for _ in range(2):
                with accept(listener) as joined:
                    places.add((joined.listening_size, joined.rank))
                    reshard_both_ways(joined, trains)
    else:
        address = store.get("address").decode()
        for _ in range(2):
            with world.connect(address, SECRET, name="weights") as joined:
                places.add((joined.listening_size, joined.rank))
                reshard_both_ways(joined, trains)
    assert world.listening_size == world.size
    world.barrier()
    world.close()
    (place,) = places
    return place


def raw_refused(rank: int, count: int, unique_id: banyan.UniqueId, folder: str) -> str:
    del unique_id, count
    world, store, trains = open_side(rank, folder, TRAINERS, ENGINES)
    if trains:
        listener = world.listen(SECRET if world.rank == 0 else None, "127.0.0.1:0", name="actor")
        assert listener.address.startswith("127.0.0.1:")
        if world.rank == 0:
            store.set("address", listener.address)
            store.get("over")
        world.barrier()
        assert listener.is_open
        world.close()  # closes the listener, too
        assert not listener.is_open
        for wrong in (lambda: listener.address, listener.accept):
            try:
                wrong()
                raise AssertionError("no error")
            except ValueError as error:
                assert "closed" in str(error), error
        return ""
    address = store.get("address").decode() if world.rank == 0 else None
    messages = []
    kinds: list[tuple[type[Exception], str | None, dict[str, Any]]] = [
        (banyan.Refused, secrets.token_hex(16), {"name": "actor"}),
        (banyan.Mismatch, SECRET, {"name": "critic"}),
        (banyan.Timeout, SECRET, {"name": "actor", "connect_timeout": 0.3}),
        (banyan.Invalid, "short", {}),
    ]
    for kind, secret, options in kinds:
        try:
            world.connect(address, secret if world.rank == 0 else None, **options)
            raise AssertionError("no error")
        except kind as error:
            messages.append(str(error))
    world.barrier()
    if world.rank == 0:
        store.set("over", "yes")
    world.close()
    return "\n".join(messages)


def raw_interrupted(rank: int, count: int, unique_id: banyan.UniqueId, waits: str) -> float:
    """Ctrl-C at rank 0 ends the wait of all ranks of its world."""
    world = banyan.World(rank, count, unique_id=unique_id, timeout=60)
    listener = world.listen(SECRET, "127.0.0.1:0")
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        if waits == "accept":
            listener.accept(math.inf)
        else:
            world.connect("127.0.0.1:1", SECRET)
        raise AssertionError("no error")
    except KeyboardInterrupt:
        assert rank == 0
    except banyan.Aborted as error:
        assert rank != 0 and "interrupted" in str(error), error
    took = time.monotonic() - began
    with contextlib.suppress(banyan.Aborted):
        world.close()
    return took


class ConnectTest(unittest.TestCase):
    def test_worlds_that_were_started_apart_reshard_both_ways(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            places = run(TRAINERS + ENGINES, raw_join, folder)
        self.assertEqual(places, [(TRAINERS, rank) for rank in range(TRAINERS + ENGINES)])

    def test_a_wrong_side_gets_an_exception(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            results = run(TRAINERS + ENGINES, raw_refused, folder)
        for text in results[TRAINERS:]:
            refused, mismatch, timeout, invalid = text.split("\n")
            self.assertIn("does not know this job's secret", refused)
            self.assertIn('asks for "critic"', mismatch)
            self.assertIn(f"a world of {TRAINERS} ranks", timeout)
            self.assertIn("to accept it", timeout)
            self.assertIn("32 hexadecimal digits", invalid)

    def test_ctrl_c_ends_a_wait_for_the_other_side(self) -> None:
        for waits in ("accept", "connect"):
            for took in run(2, raw_interrupted, waits):
                self.assertLess(took, 5, waits)

    def test_a_wait_is_not_negative(self) -> None:
        with banyan.World(0, 1) as world, world.listen(SECRET, "127.0.0.1:0") as listener:
            for wait in (-1, math.nan):
                with self.assertRaisesRegex(ValueError, "0 seconds or longer"):
                    listener.accept(wait)

    def test_the_example_runs(self) -> None:
        example = Path(__file__).resolve().parents[2] / "examples/connect.py"
        environment = os.environ | {"SECRET": SECRET}
        trainer = subprocess.Popen(
            [*launch(2), str(example)], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert trainer.stdout is not None
        address = trainer.stdout.readline().split()[-1]
        for number in range(2):  # the second engine comes after the first one has gone
            engine = subprocess.run(
                [*launch(3), str(example), address],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=120,
            )
            self.assertEqual(engine.returncode, 0, number)
            self.assertIn("rank 2 holds version 3", engine.stdout)
        self.assertEqual(trainer.wait(timeout=60), 0)
        self.assertEqual(trainer.stdout.read().count("an engine of 3 ranks"), 2)
        trainer.stdout.close()


def launch(ranks: int) -> list[str]:
    return [sys.executable, "-m", "banyan", "launch", "-n", str(ranks), "--", sys.executable]


if __name__ == "__main__":
    unittest.main()
