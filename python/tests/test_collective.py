"""Communicators: every collective against NumPy, on four ranks."""

from __future__ import annotations

import random
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

import banyan
from ranks import run, seed

TYPES = ["float32", "float16", "int32", "int64", "uint8", "uint32"]
REDUCTIONS: dict[str, Any] = {
    "sum": lambda x: np.sum(x, axis=0),
    "min": lambda x: np.min(x, axis=0),
    "max": lambda x: np.max(x, axis=0),
    "prod": lambda x: np.prod(x, axis=0, dtype=x[0].dtype),
}


def values(name: str, dtype: str, rank: int, count: int) -> np.ndarray[Any, Any]:
    """Small integers from name, rank and index: sums are exact in every type."""
    base = sum(name.encode())
    return ((np.arange(count) * 13 + rank * 7 + base) % 11).astype(dtype)


def collectives(world: banyan.World, number: int) -> None:
    rng = random.Random(number)
    comm = banyan.Communicator(world, workers=rng.choice([1, 2]))
    ranks, me = world.size, world.rank
    for turn in range(20):
        dtype, count = rng.choice(TYPES), rng.choice([1, 3, 64, 1000, 4096, 70000])
        op, root = rng.choice(["sum", "min", "max", "prod"]), rng.randrange(ranks)
        if op == "prod" and dtype == "float16":
            dtype = "float32"  # products are exact
        shift = rng.randrange(-5, 6)
        name = f"{number}.{turn}"
        inputs = [values(name, dtype, r, count * ranks) for r in range(ranks)]
        reduced = REDUCTIONS[op](inputs).astype(dtype)
        mine = inputs[me].copy()
        poison = np.full(count * ranks, 77, dtype)
        label = f"{name} {dtype} {count} {op} root {root} shift {shift}"

        def same(got: Any, expected: Any, label: str = label) -> None:
            np.testing.assert_array_equal(got, expected, err_msg=label)

        out = poison.copy()
        assert comm.all_reduce(mine, out, op=op) is out  # type: ignore[arg-type]
        same(out, reduced)
        out = mine.copy()
        comm.all_reduce(out, op=op)  # type: ignore[arg-type]
        same(out, reduced)
        out = np.full(count * ranks * ranks, 77, dtype)
        comm.all_gather(mine, out)
        same(out, np.concatenate(inputs))
        out = np.full(count, 77, dtype)
        comm.reduce_scatter(mine, out, op=op)  # type: ignore[arg-type]
        same(out, reduced[me * count : (me + 1) * count])
        out = poison.copy()
        comm.all_to_all(mine, out)
        same(out, np.concatenate([i[me * count : (me + 1) * count] for i in inputs]))
        out = poison.copy()
        comm.broadcast(mine, out, root=root)
        same(out, inputs[root])
        out = mine.copy()
        comm.broadcast(out, root=root)
        same(out, inputs[root])
        out = poison.copy()
        comm.reduce(mine, out, op=op, root=root)  # type: ignore[arg-type]
        if me == root:
            same(out, reduced)
        out = poison.copy()
        comm.send_recv(mine, out, shift=shift)
        same(out, inputs[(me - shift) % ranks])
        same(mine, inputs[me])
    comm.close()
    assert not comm.is_open


def scaled(world: banyan.World, number: int) -> None:
    rng = random.Random(number)
    comm = banyan.Communicator(world)
    ranks, me = world.size, world.rank
    for turn in range(20):
        dtype, count = rng.choice(TYPES), rng.choice([1, 3, 1000, 20000])
        whole, root = np.issubdtype(dtype, np.integer), rng.randrange(ranks)
        factors = [rng.choice([2, 3]) if whole else rng.random() for _ in range(ranks)]
        inputs = [values(f"{number}.{turn}", dtype, r, count * ranks) for r in range(ranks)]
        wide = [i.astype("float64") for i in inputs]
        average = np.sum(wide, axis=0) / ranks
        average = np.trunc(average) if whole else average
        total = np.sum([f * w for f, w in zip(factors, wide, strict=True)], axis=0)
        for how, expected in (({"op": "avg"}, average), ({"factor": factors[me]}, total)):
            options: Any = how
            bound = 0 if whole else 1e-2 if dtype == "float16" else 1e-5
            label = f"{number}.{turn} {dtype}"

            def close(got: Any, right: Any, bound: float = bound, label: str = label) -> None:
                np.testing.assert_allclose(got, right, rtol=bound, atol=bound, err_msg=label)

            out = inputs[me].copy()
            comm.all_reduce(out, **options)
            close(out, expected)
            close(comm.all_reduce(inputs[me].copy(), np.empty_like(out), **options), expected)
            part = np.empty(count, dtype)
            comm.reduce_scatter(inputs[me].copy(), part, **options)
            close(part, expected[me * count : (me + 1) * count])
            out = inputs[me].copy()
            comm.reduce(out, root=root, **options)
            close(out, expected if me == root else inputs[me])
    try:
        comm.all_reduce(np.ones(3, "float32"), op="max", factor=2.0)
    except ValueError:
        pass
    else:
        raise AssertionError("a scaled maximum")
    comm.close()


def registered(world: banyan.World) -> str:
    comm = banyan.Communicator(world)
    memory = banyan.alloc(world, 1 << 16)
    comm.register(memory)
    data = memory.array(1024, "float32").numpy()
    for turn in range(5):
        data[:] = world.rank + turn
        comm.all_reduce(data)
        assert (data == sum(range(world.size)) + world.size * turn).all()
    name = comm.choice("all_reduce", 4096, registered=True)
    comm.unregister(memory)
    try:
        comm.unregister(memory)
    except banyan.Invalid:
        pass
    else:
        raise AssertionError("unregistered twice")
    del data
    return name


def tuned(world: banyan.World, path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    steps: list[float] = []
    comm = banyan.Communicator(world)
    comm.tune(
        min_bytes=1024,
        max_bytes=4096,
        seconds=3,
        collective="all_reduce",
        progress=lambda what, share: steps.append(share),
        measured=rows.append,
    )
    assert bool(steps) == (world.rank == 0)
    comm.save_tuning(path)
    chosen = comm.choice("allreduce", 4096)
    assert banyan.Communicator(world, tuning=path).choice("allreduce", 4096) == chosen
    return rows


def failing_callback(world: banyan.World) -> str:
    def progress(what: str, share: float) -> None:
        raise KeyError(what)

    comm = banyan.Communicator(world)
    try:
        comm.tune(max_bytes=1024, seconds=1, collective="all_gather", progress=progress)
    except KeyError as error:
        return str(error)
    return ""


class CollectiveTest(unittest.TestCase):
    def test_collectives(self) -> None:
        run(4, collectives, seed())

    def test_averages_and_scaled_sums(self) -> None:
        run(3, scaled, seed())

    def test_registered_memory(self) -> None:
        self.assertEqual(len(set(run(3, registered))), 1)

    def test_tuning(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            rows = run(2, tuned, Path(folder) / "table.json")
            self.assertEqual(rows[1], [])
            self.assertTrue(rows[0])
            for row in rows[0]:
                self.assertEqual(row["collective"], "allreduce")
                self.assertGreater(row["seconds"], 0)

    def test_exceptions_of_callbacks_are_raised(self) -> None:
        self.assertEqual([bool(text) for text in run(2, failing_callback)], [True, False])

    def test_closed_communicator(self) -> None:
        with banyan.World(0, 1, unique_id=banyan.UniqueId()) as world:
            with banyan.Communicator(world) as comm:
                comm.all_reduce(bytearray(8))
            with self.assertRaisesRegex(ValueError, "closed"):
                comm.all_reduce(bytearray(8))
            with self.assertRaises(banyan.NotFound):
                banyan.Communicator(world, tuning="/does/not/exist")
            comm = banyan.Communicator(world)
            with self.assertRaises(banyan.NotFound):
                comm.all_reduce(bytearray(8), op="median")  # type: ignore[arg-type]
        with self.assertRaisesRegex(ValueError, "closed"):
            comm.all_reduce(bytearray(8))
        with self.assertRaisesRegex(ValueError, "closed"):
            banyan.Communicator(world)


if __name__ == "__main__":
    unittest.main()
