"""Plans: reading, checking, simulating, drawing, running, and the built-in algorithms."""

from __future__ import annotations

import gc
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

import banyan
from ranks import run, seed

RANKS = 4
REDUCTIONS: dict[str, Any] = {
    "sum": lambda x: np.sum(x, axis=0),
    "min": lambda x: np.min(x, axis=0),
    "max": lambda x: np.max(x, axis=0),
}


def values(name: str, rank: int, count: int, dtype: str = "int32") -> np.ndarray[Any, Any]:
    base = sum(name.encode())
    return ((np.arange(count) * 13 + rank * 7 + base) % 101).astype(dtype)


def expected_output(plan: banyan.Plan, rank: int, inputs: list[Any]) -> np.ndarray[Any, Any]:
    """The output that ``Plan.expected`` defines, poison elsewhere."""
    nbytes = inputs[0].nbytes
    item = inputs[0].itemsize
    out = np.full(plan.sizes(rank, nbytes)[1] // item, 77, inputs[0].dtype)
    op, parts = plan.expected(rank, nbytes)
    for part in parts:
        sources = [
            inputs[r][offset // item : (offset + part.nbytes) // item] for r, offset in part.sources
        ]
        reduced = REDUCTIONS[op](sources)
        out[part.offset // item : (part.offset + part.nbytes) // item] = reduced
    return out


class Plans(unittest.TestCase):
    def setUp(self) -> None:
        self.plan = banyan.compile_algorithm("allgather_ring", RANKS)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_properties(self) -> None:
        plan = self.plan
        self.assertEqual((plan.name, plan.collective, plan.ranks), ("allgather_ring",
                         "allgather", RANKS))  # fmt: skip
        self.assertEqual((plan.protocol, plan.in_place, plan.root), ("Simple", False, 0))
        self.assertEqual(plan.sizes(0, 1000), (1000, RANKS * 1000))
        self.assertGreater(plan.operations, RANKS)
        self.assertIn("allgather_ring", repr(plan))
        data = json.loads(plan.json())
        self.assertEqual(len(data["gpus"]), RANKS)
        self.assertEqual(len(data["gpus"][0]["threadblocks"]), plan.thread_blocks)
        self.assertEqual(plan.buffer_alignment, data["buffer_alignment"])

    def test_files(self) -> None:
        path = self.folder / "ring.json"
        self.plan.write(path)
        for again in (banyan.Plan.read(path), banyan.Plan.parse(path.read_bytes()),
                      banyan.Plan.parse(self.plan.json(), "text")):  # fmt: skip
            self.assertEqual(self.plan.diff(again), [])
        with self.assertRaisesRegex(banyan.NotFound, "none.json"):
            banyan.Plan.read(self.folder / "none.json")
        with self.assertRaisesRegex(banyan.FormatError, "mine"):
            banyan.Plan.parse("{}", "mine")

    def test_listing_and_diff(self) -> None:
        listing = self.plan.listing()
        self.assertIn("rank 3", listing)
        self.assertNotIn("rank 3", self.plan.listing(0).splitlines()[0])
        with self.assertRaises(ValueError):
            self.plan.listing(RANKS)
        other = banyan.compile_algorithm("allgather_ring", RANKS, in_place=True)
        lines = self.plan.diff(other)
        self.assertGreater(len(lines), 2)
        self.assertEqual(self.plan.diff(other, 1)[0], lines[0])

    def test_traffic(self) -> None:
        stats = self.plan.stats(1 << 20)
        self.assertEqual((stats.input_bytes, stats.output_bytes), (1 << 20, RANKS << 20))
        links = {(link.source, link.destination): link.nbytes for link in stats.links}
        self.assertEqual(links, {(r, (r + 1) % RANKS): (RANKS - 1) << 20 for r in range(RANKS)})
        self.assertEqual(stats.critical_hops, RANKS - 1)

    def test_expected_results(self) -> None:
        reduce = banyan.compile_algorithm("allreduce_ring", RANKS, op="max")
        op, parts = reduce.expected(1, 4096)
        self.assertEqual((op, parts[0].sources[2]), ("max", (2, 0)))
        self.assertEqual(sum(part.nbytes for part in parts), 4096)
        op, parts = self.plan.expected(1, 4096)
        self.assertEqual([(p.offset, p.sources) for p in parts],
                         [(r * 4096, [(r, 0)]) for r in range(RANKS)])  # fmt: skip

    def test_check(self) -> None:
        report = self.plan.check()
        self.assertTrue(report.is_sound)
        self.assertEqual((report.findings, report.limits), ([], ""))
        self.assertIn("sound", str(report))
        data = json.loads(self.plan.json())
        ops = data["gpus"][2]["threadblocks"][0]["ops"]
        wait = next(i for i, op in enumerate(ops) if op["name"] == "wait")
        ops[wait] = {"name": "nop"}
        broken = banyan.Plan.parse(json.dumps(data)).check([4096, 1 << 20])
        self.assertFalse(broken.is_sound)
        finding = next(f for f in broken.findings if not f.is_warning)
        self.assertTrue(finding.message)
        self.assertIn(finding.nbytes, (4096, 1 << 20))
        place = finding.places[0]
        self.assertGreaterEqual(place.rank, 0)
        self.assertEqual((place.file, place.run >= 0), (None, True))
        self.assertEqual(broken.findings[finding.like].rule, finding.rule)
        self.assertEqual(len(json.loads(broken.json())["findings"]), len(broken.findings))
        first = broken.findings[0]
        del broken
        gc.collect()
        self.assertTrue(first.places[0] and first.message)  # findings keep their report
        with self.assertRaises(ValueError):
            self.plan.check([])
        with self.assertRaises(ValueError):
            self.plan.check(max_findings=0)

    def test_simulate(self) -> None:
        slow = self.plan.simulate("h200x4", 1 << 26)
        fast = self.plan.simulate(banyan.Topology.read("h200x4"), 1 << 10, dtype="bfloat16")
        self.assertGreater(slow.seconds, 2 * fast.seconds)
        self.assertEqual(max(slow.rank_seconds), slow.seconds)
        path = slow.critical_path
        self.assertEqual(path[-1].ended, slow.seconds)
        self.assertIn("get", {step.what for step in slow.steps})
        self.assertEqual(slow.steps[-1].ended, slow.seconds)
        uses = [use for use in slow.links if use.nbytes > 0]
        self.assertTrue(all(0 < use.full <= use.busy <= 1 for use in uses))
        trace = self.folder / "trace.json"
        slow.write_trace(trace)
        self.assertTrue(json.loads(trace.read_text()))
        none = self.plan.simulate("h200x4", steps=False)
        self.assertEqual(none.steps, [])
        with self.assertRaises(banyan.Unsupported):
            none.write_trace(trace)
        with self.assertRaisesRegex(banyan.NotFound, "h200x4"):
            self.plan.simulate("no such machine")

    def test_topologies(self) -> None:
        self.assertIn("h200x4", banyan.Topology.shipped())
        machine = banyan.Topology.read("h200x4")
        again = banyan.Topology.parse(machine.json(), "mine")
        self.assertEqual(again.json(), machine.json())
        self.assertEqual((machine.name, machine.processors), ("h200x4", 4))
        self.assertGreater(machine.links, 0)
        there = {"rank": 0, "peer": 1, "nbytes": 1 << 30, "what": "there"}
        moves = [there, {"rank": 1, "peer": 0, "nbytes": 1 << 30, "after": [0], "by": "proxy"}]
        both = machine.simulate_moves(moves, 2, steps=True)
        one = machine.simulate_moves(moves[:1], 2)
        self.assertGreater(both.seconds, 1.9 * one.seconds)
        self.assertEqual(both.critical_path[0].what, "there")
        with self.assertRaisesRegex(ValueError, "by: "):
            machine.simulate_moves([{**moves[0], "by": "mail"}], 2)

    def test_pictures(self) -> None:
        view = self.plan.view(topology="h200x4", nbytes=1 << 20)
        page, figure = view.html(), view.svg()
        self.assertTrue(page.startswith("<!DOCTYPE html>"))
        self.assertIn("<svg", figure)
        self.assertNotEqual(figure, self.plan.view().svg())
        self.assertLess(len(self.plan.view(ranks="0").svg()), len(self.plan.view().svg()))
        for name, text in (("a.svg", figure), ("a.html", page)):
            view.save(self.folder / name)
            self.assertEqual((self.folder / name).read_text(), text)
        with self.assertRaisesRegex(banyan.Error, "part"):
            self.plan.view(part="9").svg()

    def test_commands(self) -> None:
        self.assertIn("allgather_ring", banyan.command("algo", "list"))
        listed = banyan.command("plan", "show", "-", input=self.plan.json())
        self.assertIn(self.plan.listing().strip(), listed)
        with self.assertRaisesRegex(banyan.Error, "none"):
            banyan.command("none")
        report = self.plan.test(nbytes=1 << 14, dtype="i32")
        self.assertEqual(report["sizes"][0]["wrong_elements"], 0)


class Algorithms(unittest.TestCase):
    def test_every_algorithm_compiles(self) -> None:
        algorithms = banyan.algorithms()
        self.assertGreater(len(algorithms), 10)
        for algorithm in algorithms:
            with self.subTest(algorithm.name):
                self.assertTrue(algorithm.about)
                per_node = 2 if "node" in algorithm.name or "hier" in algorithm.name else 0
                in_place = algorithm.collective in ("broadcast", "reduce")
                try:
                    plan = banyan.compile_algorithm(
                        algorithm.name, RANKS, ranks_per_node=per_node, in_place=in_place
                    )
                except banyan.Invalid as error:
                    self.assertIn(algorithm.name, str(error))
                else:
                    self.assertEqual(plan.collective, algorithm.collective)
        with self.assertRaisesRegex(banyan.NotFound, "allgather_rind"):
            banyan.compile_algorithm("allgather_rind", 2)

    def test_parameters(self) -> None:
        plan = banyan.compile_algorithm("allgather_ring", 2, instances=3)
        self.assertEqual(plan.thread_blocks % 3, 0)
        self.assertEqual(len(banyan.tuned_parameters("allreduce_ring", 4, 1 << 20)), 2)
        with self.assertRaises(banyan.NotFound):
            banyan.tuned_parameters("allreduce_ring", 4, 8, tuning="/none")


def runs(world: banyan.World, number: int) -> None:
    me = world.rank
    with banyan.Executor(world, workers=1 + number % 2) as executor:
        assert executor.world is world and executor.is_open
        for name, op in (("allreduce_ring", "sum"), ("allreduce_ring", "min"),
                         ("allgather_ring", "sum"), ("alltoall_allpairs", "sum")):  # fmt: skip
            plan = banyan.compile_algorithm(name, RANKS, op=op)  # type: ignore[arg-type]
            loaded = executor.load(plan, 1 << 16)
            for count in (RANKS * 4, 4096):
                inputs = [values(f"{number}{name}", r, count) for r in range(RANKS)]
                out = np.full(plan.sizes(me, count * 4)[1] // 4, 77, np.int32)
                assert loaded.run(inputs[me], out) is out
                np.testing.assert_array_equal(out, expected_output(plan, me, inputs))
                out[:] = 77
                running = loaded.start(inputs[me], out)
                try:
                    loaded.check()
                    raise AssertionError("a call used the world of a started run")
                except RuntimeError as error:
                    assert "wait for its request" in str(error), error
                running.wait()
                assert running.test()
                running.wait()
                np.testing.assert_array_equal(out, expected_output(plan, me, inputs))
            assert loaded.time(inputs[me], out, runs=3) > 0
            loaded.check()
            loaded.wait()
            loaded.reset()
            try:
                loaded.run(inputs[me], out[1:])
                raise AssertionError("an output of another size was accepted")
            except ValueError as error:
                assert "output has" in str(error), error
        loaded.close()
        try:
            loaded.run(inputs[me], out)
            raise AssertionError("a closed plan ran")
        except ValueError as error:
            assert "closed" in str(error), error


def traces(world: banyan.World, path: str) -> None:
    plan = banyan.compile_algorithm("allreduce_ring", world.size, in_place=True)
    memory = banyan.alloc(world, 1 << 16)
    executor = banyan.Executor(world)
    loaded = executor.load(plan, 1 << 16, input=memory, output=memory)
    array = memory.array(dtype="float32").numpy()
    array[:] = values("trace", world.rank, array.size, "float32")
    executor.begin_trace()
    loaded.run(memory.array(dtype="float32"))
    executor.write_trace(path)
    total = sum(values("trace", r, array.size, "float32") for r in range(world.size))
    np.testing.assert_array_equal(array, total)
    del array
    executor.close()  # unloads the plan
    assert not loaded.is_open


def forgotten(world: banyan.World) -> None:
    """Objects that nobody closes go with their world, in the right order."""
    loaded = banyan.Executor(world).load(
        banyan.compile_algorithm("allreduce_ring", world.size), 4096
    )
    gc.collect()
    out = np.zeros(16, np.int32)
    loaded.run(np.full(16, world.rank, np.int32), out)
    assert out[3] == sum(range(world.size))
    del loaded
    gc.collect()


def added(world: banyan.World) -> None:
    comm = banyan.Communicator(world)
    plan = banyan.compile_algorithm("allreduce_ring", world.size)
    mine = banyan.Plan.parse(plan.json().replace('"allreduce_ring"', '"of my own"'))
    comm.add_plan(mine)
    del plan, mine
    gc.collect()
    assert comm.choice("all_reduce", 1 << 20) == "of my own"
    out = np.zeros(64, np.float32)
    comm.all_reduce(np.full(64, world.rank, np.float32), out)
    assert out[5] == sum(range(world.size))


def once(world: banyan.World, text: str) -> None:
    plan = banyan.Plan.parse(text)
    inputs = [values("once", r, 4096) for r in range(world.size)]
    out = np.full(4096, 77, np.int32)
    for _ in range(2):
        plan.run(world, inputs[world.rank], out)
        np.testing.assert_array_equal(out, np.sum(inputs, axis=0))


class Executors(unittest.TestCase):
    def test_plans_are_adapted_and_proved_for_another_executor(self) -> None:
        plan = banyan.compile_algorithm("allgather_allpairs", 3)
        report = plan.check(executor="mscclpp")
        self.assertFalse(report.is_sound)
        self.assertEqual({f.rule for f in report.findings if not f.is_warning}, {"executor"})
        self.assertIn("double scratch", report.findings[0].message)
        adapted = plan.adapt("mscclpp")
        self.assertEqual((plan.executor, adapted.executor), ("banyan", "mscclpp"))
        self.assertTrue(adapted.check(executor="mscclpp").is_sound)
        self.assertTrue(adapted.check().is_sound)
        self.assertEqual(banyan.Plan.parse(adapted.json()).diff(adapted), [])

    def test_what_an_executor_lacks_is_named(self) -> None:
        plan = banyan.compile_algorithm("reducescatter_switch", 3)
        with self.assertRaisesRegex(banyan.Unsupported, r"operation 8 \(glre\) is unknown"):
            plan.adapt("mscclpp")
        with self.assertRaisesRegex(banyan.Error, '"nccl" names no executor'):
            plan.check(executor="nccl")

    def test_adapted_plans_run_here(self) -> None:
        run(3, once, banyan.compile_algorithm("allreduce_oneshot", 3).adapt("mscclpp").json())


class Runs(unittest.TestCase):
    def test_results_are_those_of_the_definition(self) -> None:
        run(RANKS, runs, seed())

    def test_traces_are_written_and_drawn(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/trace.json"
            run(2, traces, path)
            plan = banyan.compile_algorithm("allreduce_ring", 2, in_place=True)
            self.assertIn("<svg", plan.view(trace=path).svg())

    def test_objects_that_are_forgotten(self) -> None:
        run(2, forgotten)

    def test_communicators_use_added_plans(self) -> None:
        run(2, added)

    def test_one_run(self) -> None:
        run(2, once, banyan.compile_algorithm("allreduce_ring", 2).json())


if __name__ == "__main__":
    unittest.main()
