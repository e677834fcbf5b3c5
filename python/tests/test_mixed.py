"""Mixed collectives: every operation and mode against NumPy, tables, errors."""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import banyan
from ranks import run

Array = np.ndarray[Any, Any]


def values(rank: int, rows: int) -> Array:
    return ((np.arange(rows * 24) * 5 + rank * 17) % 19).reshape(rows, 24).astype(np.float32)


def expected(grid: banyan.MixedGrid, op: str, rows: int) -> Array:
    """The definition of the operation; `rows` are those of b."""
    tp, dp = range(grid.tp), range(grid.dp)

    def of(t: int, d: int, count: int) -> Array:
        return values(grid.rank_at(t, d), count)

    mine = slice(grid.dp_index * rows, (grid.dp_index + 1) * rows)
    if op == "allreduce":
        return np.asarray(np.sum([of(t, grid.dp_index, rows) for t in tp], axis=0))
    if op == "allgather":
        return np.concatenate([of(grid.tp_index, d, rows) for d in dp])
    if op == "reducescatter":
        whole = np.sum([of(grid.tp_index, d, rows * grid.dp) for d in dp], axis=0)
        return np.asarray(whole[mine], np.float32)
    if op == "allreduce_allgather":
        return np.concatenate([np.sum([of(t, d, rows) for t in tp], axis=0) for d in dp])
    whole = np.sum([of(t, d, rows * grid.dp) for t in tp for d in dp], axis=0)
    return np.asarray(whole[mine], np.float32)


def collectives(world: banyan.World, local_tp: int, local_dp: int, path: Path) -> list[str]:
    with banyan.Mixed(
        world, local_tp=local_tp, local_dp=local_dp, dtype="float32", use_autotune=False
    ) as mixed:
        grid = mixed.grid
        assert (grid.tp, grid.dp, grid.nodes) == (local_tp, local_dp, 1)
        assert grid.rank_at(grid.tp_index, grid.dp_index) == world.rank
        for op in mixed.ops:
            for mode in ["auto", *mixed.modes(op)]:
                for rows in (1, 3):
                    outputs = rows * grid.dp if op.endswith("allgather") else rows
                    inputs = rows * grid.dp if op.startswith("reducescatter") else rows
                    mine = values(world.rank, inputs)
                    out = np.full((outputs, 24), np.nan, np.float32)
                    assert mixed.run(op, mine, out, mode=mode) is out
                    np.testing.assert_array_equal(out, expected(grid, op, rows), f"{op} {mode}")
        if "allreduce" in mixed.ops:
            mine = values(world.rank, 2)
            mixed.run("all_reduce", mine)
            np.testing.assert_array_equal(mine, expected(grid, "allreduce", 2))
        assert mixed.choice(mixed.ops[0], 4096) in mixed.modes(mixed.ops[0])
        assert mixed.timings == []
        data = values(world.rank, 1)
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: mixed.run("allmix", data), "allmix"),
            (lambda: mixed.run(mixed.ops[0], data, mode="best"), "best"),
            (lambda: mixed.run(mixed.ops[0], np.zeros(3, np.float32), data), "dimensions"),
            (mixed.suspend, ""),
            (lambda: mixed.save_autotune(path / "none"), ""),
        ]
        for wrong, message in calls:
            try:
                wrong()
            except (banyan.Error, ValueError) as error:
                assert message in str(error), error
            else:
                raise AssertionError(message)
        return list(mixed.ops)


def tuned(world: banyan.World, path: Path) -> int:
    mixed = banyan.Mixed(
        world, local_tp=2, dtype="float32", use_autotune=False, max_bytes=2048, init=False
    )
    mixed.init_virtual_memory()
    mixed.autotune()
    timings = mixed.timings
    assert {t.nbytes for t in timings} == {1024, 2048}
    assert all(t.seconds > 0 and t.op == "allreduce" for t in timings)
    best = {t.nbytes: t.mode for t in timings if t.is_best}
    assert mixed.choice("allreduce", 2048) == best[2048]
    assert "allreduce" in mixed.table()
    mixed.save_autotune(path / "table.json")
    world.barrier()
    again = banyan.Mixed(
        world, local_tp=2, dtype="float32", max_bytes=2048, autotune=path / "table.json"
    )
    assert {t.nbytes: t.mode for t in again.timings if t.is_best} == best
    data = values(world.rank, 1)
    assert again.measure("allreduce", data, np.empty_like(data)) > 0
    again.load_autotune(path / "table.json")
    again.check()
    again.close()
    again.close()
    try:
        again.run("allreduce", data)
    except ValueError as error:
        assert "closed" in str(error)
    return len(timings)


class MixedTest(unittest.TestCase):
    def test_operations(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            both = run(4, collectives, 2, 2, Path(folder))
            self.assertEqual(both[0], ["allreduce_allgather", "reducescatter_allreduce"])
            self.assertEqual(run(2, collectives, 2, 1, Path(folder))[0], ["allreduce"])
            gather = run(2, collectives, 1, 2, Path(folder))
            self.assertEqual(gather[0], ["allgather", "reducescatter"])

    def test_tables(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(len(set(run(2, tuned, Path(folder)))), 1)


if __name__ == "__main__":
    unittest.main()
