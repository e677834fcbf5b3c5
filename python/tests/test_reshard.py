"""Reshards: every element against NumPy's slices of the global tensors."""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import random
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
from ranks import run, seed

Array = np.ndarray[Any, Any]
SHAPES = {"embed": (33, 8), "up": (16, 24), "norm": (7,), "experts": (4, 6, 10)}


def values(name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """The global tensor: from its name and the indices of its elements."""
    return (
        ((np.arange(np.prod(shape)) * 31 + sum(name.encode())) % 1021).reshape(shape).astype(dtype)
    )


def random_layout(rng: random.Random, ranks: list[int], rank: int) -> banyan.Layout:
    """Build a layout by meshes; all ranks draw the same numbers."""
    layout = banyan.Layout()
    for name, shape in SHAPES.items():
        outer = rng.choice([d for d in (1, 2, 4) if len(ranks) % d == 0])
        mesh = banyan.Mesh((outer, len(ranks) // outer), first_rank=ranks[0])
        kinds = [banyan.Replicate(), *(banyan.Shard(d) for d in range(len(shape)))]
        places = [rng.choice(kinds), rng.choice(kinds)]
        layout.add_sharded(name, "float32", shape, mesh, places, rank)
    return layout


def source_of(layout: banyan.Layout) -> dict[str, Array]:
    tensors = {t.name: np.full(t.shape, -1, t.dtype) for t in layout.tensors}
    for piece in layout.pieces:
        name = layout.tensors[piece.tensor].name
        tensors[name][...] = values(piece.name, piece.shape)[piece.box.slices]
    return tensors


def verify(layout: banyan.Layout, tensors: Any, scale: float = 1) -> int:
    """Compare the destination with slices of the global tensors; return the number of elements."""
    count = 0
    for piece in layout.pieces:
        name = layout.tensors[piece.tensor].name
        expected = values(piece.name, piece.shape)[piece.box.slices] * scale
        np.testing.assert_array_equal(np.asarray(tensors[name]), expected, err_msg=name)
        count += expected.size
    return count


def plans(world: banyan.World, number: int) -> int:
    rng = random.Random(number)
    service = banyan.CopyService(world, rng.choice([None, "direct", "pipeline"]))
    checked = 0
    for _ in range(6):
        disjoint = rng.random() < 0.5
        from_ranks = [0, 1] if disjoint else [0, 1, 2, 3]
        to_ranks = [2, 3] if disjoint else [0, 1, 2, 3]
        source = random_layout(rng, from_ranks, world.rank)
        destination = random_layout(rng, to_ranks, world.rank)
        options: Any = {"checksums": rng.random() < 0.3, "min_split_bytes": rng.choice([0, 64])}
        symmetric = rng.random() < 0.5
        plan = banyan.ReshardPlan(source, destination, world, require_whole_source=True, **options)
        plan.prove()
        given = source_of(source)
        into: banyan.Tensors
        if symmetric:
            into = plan.alloc()
        else:
            poisoned = {t.name: np.full(t.shape, np.nan, np.float32) for t in destination.tensors}
            into = banyan.Tensors(destination, poisoned)
        tensors = banyan.Tensors(source, given)
        assert (into.state, into.version) == ("empty", 0)
        for turn in range(3):
            if turn == 2:  # as the engine's next step
                for tensor in given.values():
                    tensor *= 2
            plan.execute(tensors, into, service)
            assert (into.state, into.version) == ("whole", turn + 1)
            checked += verify(destination, into, 2 if turn == 2 else 1)
        for transfer in plan.recvs:
            piece = destination.pieces[transfer.destination_piece]
            assert transfer.destination_rank == world.rank and transfer.name == piece.name
            assert piece.box.intersect(transfer.box) == transfer.box
            assert transfer.nbytes == transfer.box.elems * 4
        assert all(transfer.source_rank == world.rank for transfer in plan.sends)
        assert [t.name for t in plan.tensors] == [t.name for t in destination.tensors]
        if rng.random() < 0.5:
            plan.close()
            into.close()
        if rng.random() < 0.5:  # a new service may lie where the old one did
            plan2 = plan if plan.is_open else None
            service.close()
            service = banyan.CopyService(world)
            if world.gather(b"1" if plan2 else b"0") == [b"1"] * world.size and plan2:
                plan2.execute(tensors, into, service)
                verify(destination, into, 2)
    return checked


def started(world: banyan.World) -> None:
    mesh = banyan.Mesh((2,))
    source, destination = banyan.Layout(), banyan.Layout()
    source.add_sharded("w", "float32", (512, 64), mesh, [banyan.Shard(0)], world.rank)
    destination.add_sharded("w", "float32", (512, 64), mesh, [banyan.Shard(1)], world.rank)
    plan = banyan.ReshardPlan(source, destination, world)
    service = banyan.CopyService(world)
    into = banyan.Tensors.alloc(destination)
    given = source_of(source)
    with plan.start(banyan.Tensors(source, given), into, service) as request:
        assert into.state in ("torn", "whole")
        try:
            into.close()
        except BufferError as error:
            assert "or runs, still use" in str(error)
        else:
            raise AssertionError("closed under the run")
        for call in (world.barrier, service.run, plan.release):
            try:
                call()
            except RuntimeError as error:
                assert "wait for its request" in str(error)
            else:
                raise AssertionError("two runs at once")
        while not request.test():
            time.sleep(0.001)
    request.wait()
    assert request.test() and into.version == 1
    verify(destination, into)
    world.barrier()
    plan.start(banyan.Tensors(source, given), into, service)  # closing the world waits for it


def raw_interrupted(rank: int, count: int, unique_id: banyan.UniqueId) -> str:
    """Rank 1 never runs; Ctrl-C ends the wait of rank 0."""
    world = banyan.World(rank, count, unique_id=unique_id, timeout=60)
    mesh = banyan.Mesh((2,))
    source, destination = banyan.Layout(), banyan.Layout()
    source.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(0)], rank)
    destination.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(1)], rank)
    plan = banyan.ReshardPlan(source, destination, world)
    service = banyan.CopyService(world)
    try:
        if rank == 1:
            while True:
                world.check()
                time.sleep(0.01)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        sets = banyan.Tensors(source, source_of(source)), banyan.Tensors.alloc(destination)
        plan.start(*sets, service).wait()
    except (KeyboardInterrupt, banyan.Aborted) as error:
        return type(error).__name__
    raise AssertionError("no error")


def services(world: banyan.World) -> None:
    """A service may lie where a closed one did, whose schedules the plan has."""
    mesh = banyan.Mesh((2,))
    source, destination = banyan.Layout(), banyan.Layout()
    source.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(0)], world.rank)
    destination.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(1)], world.rank)
    plan = banyan.ReshardPlan(source, destination, world)
    sets = banyan.Tensors(source, source_of(source)), plan.alloc()
    for turn in range(20):
        with banyan.CopyService(world, "direct") as service:
            plan.execute(*sets, service)
        verify(destination, sets[1])
        assert sets[1].version == turn + 1
        np.asarray(sets[1]["w"])[...] = np.nan


def forgotten(world: banyan.World, number: int) -> None:
    """Objects may go in any order, and some only with the world."""
    rng = random.Random(number * 2 + world.rank)  # other orders on other ranks
    mesh = banyan.Mesh((2,))
    source, destination = banyan.Layout(), banyan.Layout()
    source.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(0)], world.rank)
    destination.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(1)], world.rank)
    for turn in range(8):
        plan = banyan.ReshardPlan(source, destination, world)
        service = banyan.CopyService(world)
        given = source_of(source)
        objects: dict[str, Any] = {"plan": plan, "service": service}
        objects["in"] = banyan.Tensors(source, given)
        objects["out"] = plan.alloc(symmetric=turn % 2 == 0)
        if turn % 3 == 0:
            plan.start(objects["in"], objects["out"], service).wait()
        elif turn % 3 == 1:
            plan.execute(objects["in"], objects["out"], service)
        else:
            objects["request"] = plan.start(objects["in"], objects["out"], service)
        view = np.asarray(objects["out"]["w"])
        del plan, service
        order = list(objects)
        rng.shuffle(order)
        for name in order:
            del objects[name]
            gc.collect()
        if turn % 3 == 2:  # the world has the request, and waits for it
            return
        expected = values("w", (8, 4))[:, world.rank * 2 : world.rank * 2 + 2]
        np.testing.assert_array_equal(view, expected)


END = """
import sys
import numpy as np
import banyan
mesh = banyan.Mesh((2,))
world = banyan.World()
source, destination = banyan.Layout(), banyan.Layout()
source.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(0)], world.rank)
destination.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(1)], world.rank)
service = banyan.CopyService(world)
plan = banyan.ReshardPlan(source, destination, world)
given = banyan.Tensors(source, [np.ones((4, 4), np.float32)])
into = plan.alloc()
view = np.asarray(into["w"]) if "view" in sys.argv else None
request = plan.start(given, into, service)
if "wait" in sys.argv:
    request.wait()
banyan.reshard(given, into, world, source_layout=source, destination_layout=destination) \
    if "wait" in sys.argv else None
"""


def refused(world: banyan.World) -> list[str]:
    """Errors before anything moves."""
    mesh = banyan.Mesh((2,))
    source, destination, other = banyan.Layout(), banyan.Layout(), banyan.Layout()
    source.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(0)], world.rank)
    destination.add_sharded("w", "float32", (8, 4), mesh, [banyan.Shard(1)], world.rank)
    other.add_sharded("v.w", "float32", (8, 4), mesh, [banyan.Shard(1)], world.rank)
    messages = []
    given, out = np.ones((4, 4), np.float32), np.zeros((8, 2), np.float32)
    out.flags.writeable = False
    plan = banyan.ReshardPlan(source, destination, world)
    service = banyan.CopyService(world)
    frozen = banyan.Tensors(destination, {"w": out})
    sets = banyan.Tensors(source, [given])
    wrong: list[Any] = [
        lambda: banyan.ReshardPlan(source, other, world),
        lambda: banyan.ReshardPlan(source, None, world, require_whole_source=True),
        lambda: banyan.ReshardPlan(source, None, world, colour=3),  # type: ignore[call-arg]
        lambda: banyan.Tensors(source, {}),
        lambda: banyan.Tensors(source, {"w": given, "x": given}),
        lambda: banyan.Tensors(source, [given, given]),
        lambda: banyan.Tensors(source, {"w": given[:3]}),
        lambda: plan.execute(sets, frozen, service),
        lambda: plan.execute(None, banyan.Tensors.alloc(destination), service),
    ]
    for call in wrong:
        try:
            call()
        except (ValueError, TypeError, LookupError, banyan.Error) as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("no error")
    return messages


def bfloat16(array: Array) -> Array:
    """Round to nearest even, as bits."""
    bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def e4m3(code: Array) -> Array:
    sign = np.where(code & 128, -1.0, 1.0)
    exponent, mantissa = (code >> 3) & 15, (code & 7).astype(np.float64)
    normal = (1 + mantissa / 8) * 2.0 ** (exponent.astype(np.float64) - 7)
    return sign * np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)


def transformed(world: banyan.World) -> None:
    mesh = banyan.Mesh((2,))
    source, cast, quantized = banyan.Layout(), banyan.Layout(), banyan.Layout()
    shape = (16, 64)
    source.add_sharded("w", "float32", shape, mesh, [banyan.Shard(0)], world.rank)
    cast.add_sharded("w", "bfloat16", shape, mesh, [banyan.Shard(1)], world.rank)
    quantized.add_sharded("w", "float8_e4m3fn", shape, mesh, [banyan.Shard(1)], world.rank)
    rng = np.random.default_rng(5)
    whole = (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 8, shape)).astype(np.float32)
    mine = whole[world.rank * 8 : world.rank * 8 + 8].copy()
    service = banyan.CopyService(world)
    columns = slice(world.rank * 32, world.rank * 32 + 32)
    sides: Any = ("default", "sender", "receiver")
    for side in sides:
        transform = banyan.Cast(["w"], side=side)
        plan = banyan.ReshardPlan(source, cast, world, transform=transform)
        into = plan.alloc()
        plan.execute(banyan.Tensors(source, [mine]), into, service)
        memory = into["w"]
        assert memory.dtype == "bfloat16"
        out = np.empty((16, 32), np.uint16)
        bits = np.array((ctypes.c_uint16 * 512).from_address(memory.address))
        out[...] = bits.reshape(16, 32)
        np.testing.assert_array_equal(out, bfloat16(whole[:, columns]))
    rules: Any = ("round_up", "ocp")
    for rule in rules:
        mxfp8 = banyan.Mxfp8(rule=rule)
        scales = np.full(banyan.Mxfp8.scales_shape((16, 32)), 77, np.uint8)
        assert scales.shape == (16, 1)
        mxfp8.bind_scales("w", scales)
        plan = banyan.ReshardPlan(source, quantized, world, transform=mxfp8)
        into = plan.alloc(symmetric=False)
        plan.execute(banyan.Tensors(source, [mine]), into, service)
        codes = np.array((ctypes.c_uint8 * 512).from_address(into["w"].address))
        block = whole[:, columns].astype(np.float64)
        amax = np.abs(block).max(axis=1, keepdims=True)
        expected = (
            np.ceil(np.log2(amax / 448)) if rule == "round_up" else np.floor(np.log2(amax)) - 8
        )
        np.testing.assert_array_equal(scales, (expected + 127).astype(np.uint8))
        scaled = np.clip(block / 2.0**expected, -448, 448)
        step = 2.0 ** np.maximum(np.floor(np.log2(np.maximum(np.abs(scaled), 2.0**-6))) - 3, -9)
        assert (np.abs(e4m3(codes.reshape(16, 32)) - scaled) <= step / 2).all()


def kept(world: banyan.World) -> None:
    mesh = banyan.Mesh((2,))
    source, destination = banyan.Layout(), banyan.Layout()
    for i in range(50):
        source.add_sharded(f"w{i}", "float32", (8, 6), mesh, [banyan.Shard(0)], world.rank)
        destination.add_sharded(f"w{i}", "float32", (8, 6), mesh, [banyan.Shard(1)], world.rank)
    given = source_of(source)
    out = {name: np.full((8, 3), np.nan, np.float32) for name in given}
    layouts: Any = {"source_layout": source, "destination_layout": destination}
    for turn in range(3):
        into = banyan.reshard(given, out, world, **layouts)
        assert into is not None and into.version == turn + 1 and into["w3"] is out["w3"]
        verify(destination, out)
        assert len(world._plans) == 1
    out["w7"] = np.full((8, 3), np.nan, np.float32)  # another tensor
    fresh = banyan.reshard(given, out, world, **layouts)
    assert fresh is not None and fresh.version == 1
    verify(destination, out)
    if world.rank == 0:  # one rank has another layout object: all ranks plan again
        layouts["source_layout"] = banyan.Layout()
        for i in range(50):
            layouts["source_layout"].add_sharded(
                f"w{i}", "float32", (8, 6), mesh, [banyan.Shard(0)], 0
            )
    banyan.reshard(given, out, world, **layouts)
    verify(destination, out)
    for _ in range(20):
        layouts["source_layout"] = banyan.Layout()
        for i in range(50):
            layouts["source_layout"].add_sharded(
                f"w{i}", "float32", (8, 6), mesh, [banyan.Shard(0)], world.rank
            )
        banyan.reshard(given, out, world, **layouts)
    assert len(world._plans) == 16
    view = {name: tensor[:] for name, tensor in out.items()}  # other objects, the same memory
    again = banyan.reshard(given, view, world, **layouts)
    assert again is not None and again.version == 2 and again["w3"] is out["w3"]
    with banyan.Reshard(source, destination, world, checksums=True) as own:
        own(given, out)
        own.start(given, out).wait()
        assert own.transform is None
    verify(destination, out)


def alternate(world: banyan.World) -> None:
    """Rank 1 sees its side only, and must run the plan that rank 0 chooses."""
    mesh, one = banyan.Mesh((1,)), [banyan.Replicate()]
    sources, into = [], banyan.Layout()
    for name in ("w", "v"):
        layout = banyan.Layout()
        layout.add_sharded("w", "float32", (8, 6), mesh, one, world.rank)
        layout.add_sharded(name + "2", "float32", (8, 6), mesh, one, world.rank)
        sources.append(layout if world.rank == 0 else None)
    into.add_sharded("w", "float32", (8, 6), banyan.Mesh((1,), first_rank=1), one, world.rank)
    out = {"w": np.zeros((8, 6), np.float32)}
    for turn in range(6):
        source = sources[turn % 2]
        given = (
            {t.name: np.full((8, 6), turn, np.float32) for t in source.tensors} if source else None
        )
        banyan.reshard(
            given,
            out if world.rank == 1 else None,
            world,
            source_layout=source,
            destination_layout=into if world.rank == 1 else None,
        )
        assert world.rank == 0 or (out["w"] == turn).all()
        assert len(world._plans) == min(turn, 1) + 1


def megatron_case() -> dict[str, Any]:
    """Two ranks with column shards become two replicas."""

    def tensor(rows: int, shards: list[int], replicas: list[int]) -> dict[str, Any]:
        return {
            "name": "w",
            "resolved_name": "layers.5.w",
            "shape": [rows, 6],
            "dtype": "float32",
            "element_size": 4,
            "is_tp": len(shards) > 1,
            "partition_dim": 0,
            "partition_stride": 1,
            "is_ep": False,
            "tensor_parallel_group_ranks": shards,
            "data_parallel_group_ranks": replicas,
        }

    return {
        "name": "tp2_to_dp2",
        "world_size": 2,
        "ranks": [
            {"rank": r, "src": [tensor(4, [0, 1], [r])], "dst": [tensor(8, [r], [0, 1])]}
            for r in range(2)
        ],
        "transfers": [
            {
                "task_id": 2 * to + of,
                "src_rank": of,
                "dst_rank": to,
                "src_name": "w",
                "dst_name": "w",
                "src_slice": [[0, 4], [0, 6]],
                "dst_slice": [[4 * of, 4 * of + 4], [0, 6]],
            }
            for of, to in itertools.product(range(2), range(2))
        ],
    }


def case_run(world: banyan.World, path: Path) -> None:
    """As `banyan reshard verify`: the plan of a case against the case's own transfers."""
    case = banyan.MegatronCase(path)
    source, destination = banyan.Layout(), banyan.Layout()
    source.add_case(case, world.rank, "source")
    destination.add_case(case, world.rank, "destination")
    local = {r: (np.arange(24).reshape(4, 6) + 100 * r).astype(np.float32) for r in range(2)}
    out = np.full((8, 6), np.nan, np.float32)
    expected = np.full((8, 6), np.nan, np.float32)
    for transfer in case.transfers:
        if transfer.destination_rank == world.rank:
            sent = local[transfer.source_rank][transfer.source_slice.slices]
            expected[transfer.destination_slice.slices] = sent
    with banyan.Reshard(source, destination, world) as move:
        move([local[world.rank]], {"w": out})
    np.testing.assert_array_equal(out, expected)


class ReshardTest(unittest.TestCase):
    def test_plans_and_runs(self) -> None:
        number = seed()
        for turn in range(3):
            self.assertGreater(sum(run(4, plans, number + turn)), 1000)

    def test_started_runs(self) -> None:
        run(2, started)

    def test_interrupt_ends_the_wait_for_a_run(self) -> None:
        self.assertEqual(run(2, raw_interrupted), ["KeyboardInterrupt", "Aborted"])

    def test_services_change(self) -> None:
        run(2, services)

    def test_objects_go_in_any_order(self) -> None:
        number = seed()
        for turn in range(3):
            run(2, forgotten, number + turn)

    @unittest.skipUnless("BANYAN_BUILD" in os.environ, "BANYAN_BUILD is not set")
    def test_end_of_the_interpreter(self) -> None:
        command = [str(Path(os.environ["BANYAN_BUILD"]) / "bin" / "banyan"), "launch", "-n", "2"]
        for how in ([], ["wait"], ["view"], ["wait", "view"]):
            done = subprocess.run(
                [*command, sys.executable, "-c", END, *how],
                capture_output=True,
                text=True,
                timeout=100,
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""), how)

    def test_what_is_refused(self) -> None:
        for messages in run(2, refused):
            for message, expected in zip(
                messages,
                (
                    "NotFound:.*v.w",
                    "Invalid:.*w",
                    "TypeError: there is no option colour",
                    'ValueError: .*"w" is missing',
                    'ValueError: .*no tensor "x"',
                    "ValueError: 2 tensors for a layout of 1",
                    "Invalid:.*w.*",
                    'ValueError: destination.*"w" is read-only',
                    "Invalid:.*",
                ),
                strict=True,
            ):
                self.assertRegex(message, expected)

    def test_transforms(self) -> None:
        run(2, transformed)
        with self.assertRaisesRegex(ValueError, "side is"):
            banyan.Cast(side="left")  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "not a string"):
            banyan.Cast("w")
        self.assertEqual(banyan.Mxfp8.scales_shape((3, 100), "swizzled"), (512,))

    def test_dictionaries_are_planned_once(self) -> None:
        run(2, kept)
        run(2, alternate)

    @unittest.skipUnless("BANYAN_BUILD" in os.environ, "BANYAN_BUILD is not set")
    def test_example_of_the_documentation(self) -> None:
        page = Path(__file__).parents[2] / "docs" / "python.md"
        example = page.read_text().split("```python\n")[1].split("```")[0]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "example.py"
            path.write_text(example)
            banyan_command = Path(os.environ["BANYAN_BUILD"]) / "bin" / "banyan"
            command = [str(banyan_command), "launch", "-n", "4", sys.executable, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_cases(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "case.json"
            case = megatron_case()
            path.write_text(json.dumps(case))
            loaded = banyan.MegatronCase(path)
            self.assertEqual((loaded.name, loaded.world_size), ("tp2_to_dp2", 2))
            self.assertEqual(len(loaded.transfers), 4)
            self.assertEqual(banyan.check_case(loaded).findings, [])
            report = banyan.check_case(loaded, ranks_per_node=1)
            self.assertEqual(report.findings, [])
            self.assertEqual(json.loads(report.json())["nodes"], 2)
            run(2, case_run, path)
            del case["transfers"][1]
            path.write_text(json.dumps(case))
            report = banyan.check_case(banyan.MegatronCase(path), min_split_bytes=64)
            self.assertEqual({(f.rule, f.rank) for f in report.findings}, {("unwritten", 1)})
            self.assertIn("tp2_to_dp2", str(report))
            self.assertEqual(json.loads(report.json())["findings"][0]["rule"], "unwritten")


if __name__ == "__main__":
    unittest.main()
