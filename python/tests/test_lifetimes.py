"""Objects close in any order, Ctrl-C ends every wait, and each status has its exception."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import banyan
from ranks import run, seed

ROOT = Path(__file__).resolve().parents[2]


def layouts(world: banyan.World) -> tuple[banyan.Layout, banyan.Layout]:
    mesh = banyan.Mesh((world.size,))
    rows, columns = banyan.Layout(), banyan.Layout()
    rows.add_sharded("w", "float32", (8, 8), mesh, [banyan.Shard(0)], world.rank)
    columns.add_sharded("w", "float32", (8, 8), mesh, [banyan.Shard(1)], world.rank)
    return rows, columns


def everything(world: banyan.World) -> dict[str, Any]:
    """Open an object of every kind, and use it. Each is used by some that come after it."""
    rows, columns = layouts(world)
    made: dict[str, Any] = {"memory": banyan.alloc(world, 1 << 16)}
    made["array"] = made["memory"].array(1024, "float32")
    made["numpy"] = made["array"].numpy()
    made["numpy"][:] = world.rank
    made["communicator"] = banyan.Communicator(world)
    made["communicator"].register(made["memory"])
    made["communicator"].all_reduce(made["array"])
    made["plan"] = banyan.compile_algorithm("allgather_ring", max(world.size, 2))
    made["executor"] = banyan.Executor(world)
    if world.size > 1:
        made["loaded"] = made["executor"].load(made["plan"], 1 << 10)
        whole = np.zeros(64 * world.size, np.float32)
        made["loaded"].run(np.ones(64, np.float32), whole)
        assert whole.all()
    made["source"] = banyan.Tensors.alloc(rows, world)
    made["destination"] = banyan.Tensors.alloc(columns)
    made["reshard plan"] = banyan.ReshardPlan(rows, columns, world)
    made["service"] = banyan.CopyService(world)
    made["reshard plan"].execute(made["source"], made["destination"], made["service"])
    made["schedule"] = made["service"].prepare()
    made["schedule"].run()
    made["reshard"] = banyan.Reshard(rows, columns, world)
    made["reshard"](made["source"], made["destination"])
    options: dict[str, Any] = {"use_autotune": False, "dtype": "float32"}
    made["mixed"] = banyan.Mixed(world, local_tp=world.size, **options)
    made["sub"] = world.split(list(range(world.size)))
    made["sub communicator"] = banyan.Communicator(made["sub"])
    return made


def forgotten(world: banyan.World, number: int) -> None:
    """Ranks forget all objects, each in an order of its own."""
    for turn in range(4):
        made = everything(world)
        names = list(made)
        random.Random(f"{number} {turn} {world.rank}").shuffle(names)
        for name in names:
            del made[name]
        world.barrier()


#: Leaves everything open at the end, and lets it go in an order of its own.
END = """
import gc, random, sys, threading
import numpy, banyan
sys.path.insert(0, {tests!r})
import test_lifetimes
number, how = {number}, {how!r}
world = banyan.World(timeout=30)
made = test_lifetimes.everything(world)
draw = random.Random(f"{{number}} {{world.rank}}")
names = list(made)
draw.shuffle(names)
if how == "globals":  # modules forget their globals one by one
    for name in names:
        globals()[name.replace(" ", "_")] = made.pop(name)
elif how == "cycle":
    made["itself"] = made
    made["world"] = world
    del world, made
elif how == "module":
    sys.modules["keeper"] = made
    builtins = __import__("builtins")
    builtins.keeper = [made[name] for name in names]
elif how == "thread":
    local = threading.local()
    local.made = made
    stop = threading.Event()
    threading.Thread(target=lambda kept=dict(made): stop.wait(0.2)).start()
elif how == "close":
    del made["numpy"]
    world.close()
elif how == "exit":
    sys.exit(0)
elif how == "disabled":
    gc.disable()
    del banyan
"""


def blocked(world: banyan.World) -> dict[str, Any]:
    """Return calls that wait for the other rank, each with what it needs."""
    rows, columns = layouts(world)
    comm = banyan.Communicator(world)
    loaded = banyan.Executor(world).load(banyan.compile_algorithm("allgather_ring", 2), 1 << 10)
    service = banyan.CopyService(world)
    sets = banyan.Tensors.alloc(rows), banyan.Tensors.alloc(columns)
    plan = banyan.ReshardPlan(rows, columns, world)
    reshard = banyan.Reshard(rows, columns, world)
    mixed = banyan.Mixed(world, local_tp=2, use_autotune=False, dtype="float32")
    one, two = np.ones((2, 32), np.float32), np.ones((4, 32), np.float32)
    return {
        "broadcast": lambda: world.broadcast(None, root=1),
        "gather": lambda: world.gather(b"x"),
        "alloc": lambda: banyan.alloc(world, 64),
        "communicator": lambda: banyan.Communicator(world),
        "all_reduce": lambda: comm.all_reduce(one),
        "tune": lambda: comm.tune(max_bytes=64, seconds=0.1),
        "loaded": lambda: loaded.run(one, two),
        "started": lambda: loaded.start(one, two).wait(),
        "service": service.run,
        "plan": lambda: banyan.ReshardPlan(rows, columns, world),
        "execute": lambda: plan.execute(*sets, service),
        "reshard": lambda: reshard(*sets),
        "save": lambda: banyan.Checkpoint.save("/tmp/never", rows, sets[0], world),
        "mixed": lambda: mixed.run("allreduce", one),
    }


CALLS = "broadcast gather alloc communicator all_reduce tune loaded started service plan"
CALLS += " execute reshard save mixed"


def raw_interrupted(rank: int, count: int, unique_id: banyan.UniqueId, name: str) -> str:
    """Rank 1 makes no call; Ctrl-C ends that of rank 0, and the world."""
    world = banyan.World(rank, count, unique_id=unique_id, timeout=60)
    call = blocked(world)[name]
    began = time.monotonic()
    try:
        if rank == 1:
            while time.monotonic() < began + 50:
                world.check()
                time.sleep(0.01)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        call()
    except (KeyboardInterrupt, banyan.Aborted) as error:
        assert time.monotonic() < began + 20
        return type(error).__name__
    raise AssertionError(f"{name} did not wait")


def raw_alone(rank: int, count: int, unique_id: banyan.UniqueId) -> str:
    """Ctrl-C ends the wait for ranks that never come."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        banyan.World(0, 2, unique_id=unique_id, timeout=60)
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    raise AssertionError("no error")


def late(world: banyan.World) -> str:
    if world.rank == 1:
        time.sleep(1.5)
        world.barrier()
        return ""
    world.timeout = 0.3
    try:
        world.barrier()
    except banyan.Timeout as error:
        world.timeout = None
        world.barrier()
        return str(error)
    raise AssertionError("no error")


class LifetimesTest(unittest.TestCase):
    def test_ranks_forget_objects_in_any_order(self) -> None:
        run(3, forgotten, seed())

    def test_interpreter_ends_with_everything_open(self) -> None:
        number = seed()
        for how in ("globals", "cycle", "module", "thread", "close", "exit", "disabled"):
            with self.subTest(how):
                script = END.format(tests=str(ROOT / "python/tests"), number=number, how=how)
                words = ("launch", "-n", 2, "--", sys.executable, "-X", "faulthandler", "-c")
                self.assertEqual(banyan.command(*words, script), "")

    def test_with_closes(self) -> None:
        with banyan.World(0, 1, unique_id=banyan.UniqueId()) as world:
            made = everything(world)
            del made["numpy"]
            managers: list[Any] = [one for one in made.values() if hasattr(one, "__exit__")]
            kinds = {type(one).__name__ for one in managers}
            for kind in dir(banyan):
                one = getattr(banyan, kind)
                if isinstance(one, type) and hasattr(one, "__exit__"):
                    kinds.discard(kind)
            self.assertEqual(kinds, set())
            for one in reversed(managers):
                with one as entered:
                    self.assertIs(entered, one)
                    self.assertTrue(getattr(one, "is_open", True))
                self.assertFalse(getattr(one, "is_open", False))
                one.close()  # nothing happens
            calls: dict[str, Callable[[], object]] = {
                "memory": lambda: made["memory"].array(),
                "communicator": lambda: made["communicator"].all_reduce(bytearray(8)),
                "executor": lambda: made["executor"].load(made["plan"], 8),
                "service": lambda: made["service"].run(),
                "schedule": lambda: made["schedule"].run(),
                "mixed": lambda: made["mixed"].ops,
                "destination": lambda: made["destination"].version,
                "reshard plan": lambda: made["reshard plan"].sends,
                "sub": lambda: made["sub"].barrier(),
            }
            for name, call in calls.items():
                with self.assertRaisesRegex(ValueError, "closed", msg=name):
                    call()

    def test_ctrl_c_ends_every_wait(self) -> None:
        for name in CALLS.split():
            with self.subTest(name):
                self.assertEqual(run(2, raw_interrupted, name), ["KeyboardInterrupt", "Aborted"])

    def test_ctrl_c_ends_the_opening_of_a_world(self) -> None:
        self.assertEqual(run(1, raw_alone), ["KeyboardInterrupt"])

    def test_timeout_can_be_tried_again(self) -> None:
        self.assertRegex(run(2, late)[0], "rank 1")


class StatusTest(unittest.TestCase):
    def test_every_status_has_an_exception(self) -> None:
        header = (ROOT / "include/banyan/core.h").read_text()
        statuses = re.findall(r"^    BANYAN_ERR_(\w+)", header, re.MULTILINE)
        source = (ROOT / "python/src/errors.cpp").read_text()
        table = source.partition("exception_names[] = {")[2].partition("}")[0]
        names = re.findall(r'"(\w+)"', table)
        renamed = {"NO_MEMORY": "OutOfMemory", "SYSTEM": "SystemFailure", "FORMAT": "FormatError"}
        renamed["NVSHMEM"] = "NvshmemFailure"
        expected = [renamed.get(s, "".join(w.title() for w in s.split("_"))) for s in statuses]
        self.assertEqual(names, ["Error", *expected])
        for name in names:
            self.assertTrue(issubclass(getattr(banyan, name), banyan.Error))
            self.assertIn(name, banyan.__all__)

    def test_exceptions_are_pythons_too(self) -> None:
        for ours, theirs in {
            banyan.Invalid: ValueError,
            banyan.OutOfMemory: MemoryError,
            banyan.SystemFailure: OSError,
            banyan.Timeout: TimeoutError,
            banyan.PeerLost: ConnectionError,
            banyan.Unsupported: NotImplementedError,
            banyan.NotFound: LookupError,
            banyan.Refused: PermissionError,
        }.items():
            self.assertTrue(issubclass(ours, theirs))

    def test_local_errors(self) -> None:
        calls: dict[type[Exception], Callable[[], object]] = {
            banyan.OutOfMemory: lambda: banyan.alloc(world, 1 << 60),
            banyan.NotFound: lambda: banyan.Topology.read("h300"),
            banyan.FormatError: lambda: banyan.Plan.parse("{"),
            banyan.Unsupported: lambda: banyan.Communicator(world, device="cuda:99"),
            banyan.SystemFailure: lambda: banyan.Checkpoint.write("/sys/x", {"a": bytes(4)}),
        }

        with (
            tempfile.TemporaryDirectory(),
            banyan.World(0, 1, unique_id=banyan.UniqueId()) as world,
        ):
            for kind, call in calls.items():
                with self.assertRaises(kind) as caught:
                    call()
                self.assertGreater(len(str(caught.exception)), 10)


if __name__ == "__main__":
    unittest.main()
