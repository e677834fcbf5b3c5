"""Programs in Python: MSCCL++'s plans, errors and names; lines in findings."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import re
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import banyan
import banyan.language as language
import programs
from banyan.language import (
    JSON,
    AlgoSpec,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Buffer,
    BufferType,
    Collective,
    CollectiveProgram,
    Custom,
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
    Rank,
    Reduce,
    ReduceOperationType,
    ReduceScatter,
    ReplicationPolicy,
    Semaphore,
    SendRecv,
    SwitchChannel,
    SyncType,
    ThreadBlockGroup,
)
from banyan.language.types import BaseBuffer
from ranks import run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/program"))
plan_digest: Any = importlib.import_module("plan_digest")


class Plans(unittest.TestCase):
    def test_plans_are_those_of_mscclpp(self) -> None:
        digests = plan_digest.read_digests(ROOT / "tests/data/plans.sha256")
        self.assertEqual(len(programs.PROGRAMS), 34)
        for program in programs.PROGRAMS:
            with self.subTest(program[0]):
                made = programs.build(program)
                self.assertEqual(plan_digest.digest(made.to_json()), digests[program[0]])
                # A program can be compiled again.
                self.assertEqual(made.compile().diff(banyan.Plan.parse(made.to_json())), [])

    def test_json_is_of_the_program_of_the_with(self) -> None:
        with CollectiveProgram("here", AllGather(2, 1, False), 2) as program:
            plan = json.loads(JSON())
            self.assertEqual(program.to_json(indent=None, sort_keys=True)[0], "{")
        self.assertEqual((plan["name"], plan["collective"]), ("here", "allgather"))
        self.assertEqual(program.compile().ranks, 2)

    def test_options_reach_the_plan(self) -> None:
        spec = AlgoSpec(
            name="options",
            collective=AllReduce(4, 2, True),
            nranks_per_node=2,
            world_size=4,
            in_place=True,
            instances=3,
            protocol="LL",
            reuse_resources=True,
            num_threads_per_block=512,
            use_double_scratch_buffer=True,
            buffer_alignment=32,
            min_message_size=1 << 10,
            max_message_size=1 << 20,
        )
        with CollectiveProgram.from_spec(spec) as program:
            mine = Rank(0).get_input_buffer()
            Rank(0).copy(mine[0:2], mine[2:4], tb=1)
        program.tag("author", "me")
        plan = program.compile()
        self.assertEqual(
            (plan.protocol, plan.in_place, plan.reuse_resources, plan.double_scratch),
            ("LL", True, True, True),
        )
        self.assertEqual((plan.threads_per_block, plan.buffer_alignment), (512, 32))
        self.assertEqual((plan.min_message_bytes, plan.max_message_bytes), (1 << 10, 1 << 20))
        self.assertEqual((plan.thread_blocks, plan.operations), (6, 3))
        self.assertEqual(plan.tags, {"author": "me"})

    def test_replication_and_fusion(self) -> None:
        def operations(**options: Any) -> tuple[int, str]:
            with CollectiveProgram("r", AllReduce(2, 1, False), 2, **options) as program:
                inputs, outputs = Rank(0).get_input_buffer(), Rank(0).get_output_buffer()
                s = Buffer(0, 2)
                for i in range(2):
                    Rank(0).reduce(inputs[0:1], [s[i : i + 1]], tb=0, dst_chunk=outputs[0:1])
            plan = program.compile()
            return plan.operations, plan.listing(0)

        self.assertEqual(operations()[0], 1)
        self.assertEqual(operations(instr_fusion=False, auto_sync=False)[0], 2)
        self.assertEqual(operations(instr_fusion=False)[0], 3)
        self.assertIn("i[1]", operations(instances=2)[1])
        same = operations(instances=2, replication_policy=ReplicationPolicy.none)[1]
        self.assertNotIn("i[1]", same)

    def test_signatures_are_those_of_mscclpp(self) -> None:
        def names(of: Any) -> list[str]:
            return [name for name in inspect.signature(of).parameters if name != "self"]

        two = ["dst_chunk", "src_chunk", "tb"]
        group = [*two, "tb_group"]
        expected: list[tuple[Any, list[str]]] = [
            (MemoryChannel, ["dst_rank", "src_rank"]),
            (MemoryChannel.signal, ["tb", "data_sync", "relaxed"]),
            (MemoryChannel.wait, ["tb", "data_sync", "relaxed"]),
            (MemoryChannel.get, group),
            (MemoryChannel.put, group),
            (MemoryChannel.put_packets, group),
            (MemoryChannel.read_put_packets, group),
            (
                MemoryChannel.reduce,
                [
                    "local_src_chunk",
                    "remote_src_chunks",
                    "tb",
                    "tb_group",
                    "local_dst_chunk",
                    "reduce_op",
                ],
            ),
            (PortChannel, ["dst_rank", "src_rank"]),
            (PortChannel.signal, ["tb", "data_sync"]),
            (PortChannel.wait, ["tb", "data_sync"]),
            (PortChannel.flush, ["tb", "data_sync"]),
            (PortChannel.put, two),
            (PortChannel.put_with_signal, two),
            (PortChannel.put_with_signal_and_flush, two),
            (PortChannel.put_packets, two),
            (PortChannel.read_put_packets, group),
            (SwitchChannel, ["rank_list", "buffer_type"]),
            (
                SwitchChannel.reduce,
                ["rank", "buffer_offset", "size", "dst_chunk", "tb", "reduce_op"],
            ),
            (SwitchChannel.broadcast, ["rank", "src_chunk", "buffer_offset", "size", "tb"]),
            (
                SwitchChannel.broadcast_packets,
                ["rank", "src_chunk", "buffer_offset", "size", "tb"],
            ),
            (Rank.copy, group),
            (Rank.copy_packets, group),
            (Rank.unpack_packets, group),
            (
                Rank.reduce,
                [
                    "src_chunk",
                    "other_chunks",
                    "tb",
                    "tb_group",
                    "dst_chunk",
                    "reduce_op",
                    "packet",
                ],
            ),
            (Rank.barrier, ["tb_list"]),
            (Buffer, ["rank", "size"]),
            (Semaphore, ["rank", "initial_value"]),
            (Semaphore.acquire, ["tb", "data_sync"]),
            (Semaphore.release, ["tb", "data_sync"]),
            (ThreadBlockGroup, ["tb_list"]),
            (LoopIterationContext, ["unit", "num_chunks"]),
            (AllReduce, ["num_ranks", "chunk_factor", "inplace"]),
        ]
        for of, wanted in expected:
            self.assertEqual(names(of), wanted, of)
        self.assertEqual(names(CollectiveProgram)[-3:-1], ["max_message_size", "fuse_more"])


class Collectives(unittest.TestCase):
    def test_every_collective_has_its_result(self) -> None:
        kinds: list[tuple[Collective, str]] = [
            (AllReduce(2, 1, False), "allreduce"),
            (AllGather(2, 1, False), "allgather"),
            (ReduceScatter(2, 1, False), "reducescatter"),
            (AllToAll(2, 1, False), "alltoall"),
            (SendRecv(2, 1, False), "sendrecv"),
            (Broadcast(2, 1, False, root=1), "broadcast"),
            (Reduce(2, 1, False, root=1), "reduce"),
        ]
        for collective, name in kinds:
            with CollectiveProgram("none", collective, 2) as program:
                pass
            plan = program.compile()
            self.assertEqual(plan.collective, name)
            self.assertTrue(plan.expected(1, 1024)[1], name)  # a program of nothing is unsound
            self.assertFalse(plan.check(1024).is_sound, name)

    def test_custom_results_are_checked(self) -> None:
        def exchange(right: bool) -> CollectiveProgram:
            swapped = [(rank, 0, [(1 - rank, 0)]) for rank in range(2)]
            collective = Custom(2, 1, 1, name="exchange", expected=swapped)
            with CollectiveProgram("exchange", collective, 2) as program:
                for rank in range(2):
                    channel = MemoryChannel(1 - rank, rank)
                    programs.meet(channel)
                    source = Rank(rank).get_input_buffer()[:]
                    target = Rank(1 - rank if right else rank).get_output_buffer()[:]
                    if right:
                        channel.put(target, source, tb=0)
                    else:
                        Rank(rank).copy(target, source, tb=0)
                    channel.signal(tb=0)
                    channel.wait(tb=0)
            return program

        self.assertTrue(exchange(True).check().is_sound)
        report = exchange(False).check()
        self.assertEqual({f.rule for f in report.findings if not f.is_warning}, {"result"})

    def test_own_collectives_have_own_sizes(self) -> None:
        class Halves(Collective):
            def __init__(self) -> None:
                super().__init__(2, 1, False)
                self.name = "halves"

            def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
                return [
                    {
                        BufferType.input: BaseBuffer(rank, BufferType.input, 0, 4),
                        BufferType.output: BaseBuffer(rank, BufferType.output, 0, 2),
                    }
                    for rank in range(2)
                ]

        with CollectiveProgram("own", Halves(), 2) as program:
            Rank(1).copy(Rank(1).get_output_buffer()[:], Rank(1).get_input_buffer()[2:4], tb=0)
        plan = program.compile()
        self.assertEqual((plan.collective, plan.sizes(1, 4096)), ("halves", (4096, 2048)))


class Errors(unittest.TestCase):
    def setUp(self) -> None:
        self.program = CollectiveProgram("wrong", AllReduce(2, 2, False), 2)
        self.program.__enter__()
        self.addCleanup(self.program.__exit__)
        self.input = [Rank(rank).get_input_buffer() for rank in range(2)]
        self.output = [Rank(rank).get_output_buffer() for rank in range(2)]
        self.scratch = [Buffer(rank, 2) for rank in range(2)]
        self.memory, self.port = MemoryChannel(1, 0), PortChannel(1, 0)

    def refused(self, kind: type[Exception], text: str, call: Callable[[], object]) -> None:
        with self.assertRaisesRegex(kind, text):
            call()

    def test_calls_raise_as_in_mscclpp(self) -> None:
        i, o, s = self.input, self.output, self.scratch
        switch = SwitchChannel([0, 1], BufferType.input)
        cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (RuntimeError, "rank 2 is out of range", lambda: Rank(2)),
            (RuntimeError, "rank 3 is out of range", lambda: Buffer(3, 1)),
            (RuntimeError, "rank 2 is out of range", lambda: Semaphore(2, 0)),
            (RuntimeError, "source rank 2", lambda: MemoryChannel(0, 2)),
            (RuntimeError, "destination rank 2", lambda: PortChannel(2, 0)),
            (RuntimeError, "rank 5", lambda: SwitchChannel([0, 5], BufferType.input)),
            (RuntimeError, "rank 1 is not in the group", lambda: SwitchChannel(
                [0], BufferType.input).at_rank(1)),
            (TypeError, "slice", lambda: i[0][0]),  # type: ignore[index]
            (ValueError, "step", lambda: i[0][0:4:2]),
            (ValueError, "negative", lambda: i[0][-1:]),
            (ValueError, "after the stop", lambda: i[0][3:2]),
            (RuntimeError, "outside of rank 0's input", lambda: i[0][0:5]),
            (ValueError, "twice", lambda: ThreadBlockGroup([1, 2, 1])),
            (ValueError, "not in the group", lambda: ThreadBlockGroup([1]).get_internal_id(2)),
            (RuntimeError, "rank 1, not of rank 0", lambda: Rank(0).copy(
                o[1][:], i[0][:], tb=0)),
            (RuntimeError, "2 chunks, the destination 1", lambda: Rank(0).copy(
                o[0][0:1], i[0][0:2], tb=0)),
            (RuntimeError, "lie in scratch", lambda: Rank(0).copy_packets(
                o[0][0:1], i[0][0:1], tb=0)),
            (RuntimeError, "lie in scratch", lambda: Rank(0).unpack_packets(
                o[0][0:1], i[0][0:1], tb=0)),
            (RuntimeError, "neither a thread block", lambda: Rank(0).copy(o[0][:], i[0][:])),
            (RuntimeError, "nothing to reduce", lambda: Rank(0).reduce(i[0][0:1], [], tb=0)),
            (RuntimeError, "other source", lambda: Rank(0).reduce(
                i[0][0:1], [i[1][0:1]], tb=0)),
            (RuntimeError, "lie in scratch", lambda: Rank(0).reduce(
                i[0][0:1], [i[0][1:2]], tb=0, packet=True)),
            (RuntimeError, "needs a thread block", lambda: Rank(0).barrier([])),
            (RuntimeError, "source is a chunk of rank 1", lambda: self.memory.put(
                o[1][:], i[1][:], tb=0)),
            (RuntimeError, "destination is a chunk of rank 0", lambda: self.memory.put(
                o[0][:], i[0][:], tb=0)),
            (RuntimeError, "source is a chunk of rank 0", lambda: self.memory.get(
                o[0][:], i[0][:], tb=0)),
            (RuntimeError, "lie in scratch", lambda: self.memory.put_packets(
                o[1][0:1], i[0][0:1], tb=0)),
            (RuntimeError, "lie in scratch", lambda: self.memory.read_put_packets(
                s[1][0:1], i[0][0:1], tb=0)),
            (RuntimeError, "remote source", lambda: self.memory.reduce(
                i[0][0:1], [i[0][0:1]], tb=0)),
            (RuntimeError, "4 chunks, the destination 2", lambda: self.port.put(
                s[1][:], i[0][:], tb=0)),
            (RuntimeError, "lie in scratch", lambda: self.port.put_packets(
                o[1][0:1], i[0][0:1], tb=0)),
            (ValueError, "neither a thread block", lambda: self.port.read_put_packets(
                s[1][:], s[0][:])),
            (RuntimeError, "2 chunks, the region 1", lambda: switch.reduce(
                0, 0, 1, o[0][0:2], tb=0)),
            (RuntimeError, "past the end", lambda: switch.at_rank(0).broadcast(
                o[0][0:1], 4, 1, tb=0)),
            (RuntimeError, "lie in scratch", lambda: switch.at_rank(0).broadcast_packets(
                s[0][0:1], 0, 1, tb=0)),
            (RuntimeError, "both thread block", lambda: Rank(0).copy(
                o[0][:], i[0][:], tb=0, tb_group=ThreadBlockGroup([0, 1]))),
            (AssertionError, "Medium", lambda: CollectiveProgram(
                "p", AllReduce(2, 1, True), 2, protocol="Medium")),
            (RuntimeError, "its collective has 3", lambda: CollectiveProgram(
                "p", AllReduce(3, 1, True), 2)),
        ]  # fmt: skip
        for kind, text, call in cases:
            with self.subTest(text=text, kind=kind.__name__):
                self.refused(kind, text, call)
        # A refused call adds nothing, and the program goes on.
        Rank(0).copy(o[0][:], i[0][:], tb=0)
        self.assertEqual(self.program.compile().operations, 1)

    def test_loops_do_not_nest(self) -> None:
        with LoopIterationContext(unit=1024, num_chunks=4):
            self.refused(RuntimeError, "do not nest", LoopIterationContext(1, 1).__enter__)
        Rank(0).barrier([0])
        self.assertEqual(self.program.compile().operations, 1)

    def test_signals_and_waits_must_pair(self) -> None:
        self.port.signal(tb=0)
        self.refused(RuntimeError, "rank 0 signals rank 1 1 time", self.program.compile)
        self.refused(banyan.ProgramError, "do not pair up", self.program.to_json)

    def test_the_library_names_the_line(self) -> None:
        line = sys._getframe().f_lineno + 1
        self.refused(RuntimeError, rf"test_language\.py:{line}: ", lambda: Rank(0).barrier([1, 1]))

    def test_calls_need_a_program(self) -> None:
        self.program.__exit__()
        self.refused(RuntimeError, "no program", lambda: Rank(0))
        self.refused(RuntimeError, "no program", lambda: self.memory.signal(tb=0))
        self.refused(RuntimeError, "no program", JSON)


class Sync(unittest.TestCase):
    def test_types_combine(self) -> None:
        both, none = SyncType.both, SyncType.none
        before, after = SyncType.before, SyncType.after
        self.assertEqual((before | after, before | none, both & after), (both, before, after))
        self.assertEqual((both ^ after, none & both, before ^ before), (before, none, none))
        self.assertEqual([str(t) for t in (both, BufferType.scratch)], ["both", "s"])
        self.assertEqual(str(ReduceOperationType.max), "max")


def racy() -> tuple[CollectiveProgram, int, int]:
    """A program with a race, and the lines of its two operations."""
    put = copy = 0
    with CollectiveProgram("racy", AllGather(2, 1, False), 2) as program:
        for rank in range(2):
            own = Rank(rank).get_input_buffer()[:]
            channel = MemoryChannel(1 - rank, rank)
            outputs = [Rank(r).get_output_buffer()[rank : rank + 1] for r in range(2)]
            Rank(rank).copy(outputs[rank], own, tb=0)
            put = sys._getframe().f_lineno + 1
            channel.put(outputs[1 - rank], own, tb=0)
            copy = sys._getframe().f_lineno + 1
            Rank(rank).copy(Rank(rank).get_output_buffer()[1 - rank : 2 - rank], own, tb=1)
            channel.signal(tb=0)
            channel.wait(tb=0)
    return program, put, copy


def run_program(world: banyan.World) -> None:
    with CollectiveProgram("mine", AllGather(2, 1, False), 2) as program:
        for rank in range(2):
            own = Rank(rank).get_input_buffer()[:]
            channel = MemoryChannel(1 - rank, rank)
            Rank(rank).copy(Rank(rank).get_output_buffer()[rank : rank + 1], own, tb=0)
            channel.put(Rank(1 - rank).get_output_buffer()[rank : rank + 1], own, tb=0)
            channel.signal(tb=0)
            channel.wait(tb=0)
    mine = np.arange(1000, dtype=np.int32) * (world.rank + 3)
    out = np.full(2000, -1, dtype=np.int32)
    assert program.run(world, mine, out) is out
    expected = np.concatenate([np.arange(1000, dtype=np.int32) * (r + 3) for r in range(2)])
    np.testing.assert_array_equal(out, expected)


class Uses(unittest.TestCase):
    def test_findings_have_the_lines_of_the_program(self) -> None:
        program, put, copy = racy()
        report = program.check()
        self.assertFalse(report.is_sound)
        race = next(f for f in report.findings if f.rule == "race")
        self.assertEqual({p.line for p in race.places}, {put, copy})
        self.assertEqual({Path(p.file or "").name for p in race.places}, {"test_language.py"})
        self.assertIn(f"test_language.py:{put}", str(report))
        # Also in a plan that was written and read.
        again = banyan.Plan.parse(program.to_json()).check()
        self.assertEqual(str(again), str(report))

    def test_pictures_have_the_lines_of_the_program(self) -> None:
        program, put, _ = racy()
        page = program.view(check=True).html()
        self.assertIn("test_language.py", page)
        self.assertIn(str(put), page)
        self.assertIn("<svg", program.view().svg())
        self.assertIn("<svg", program._repr_html_())

    def test_simulate(self) -> None:
        program, _, _ = racy()
        self.assertGreater(program.simulate("h200x4", 1 << 20).seconds, 0)

    def test_run(self) -> None:
        run(2, run_program)

    def test_test(self) -> None:
        of = next(p for p in programs.PROGRAMS if p[0] == "single_node_allgather_2")
        report = programs.build(of).test(nbytes=4096)
        self.assertTrue(report["sizes"])

    def test_the_page_of_the_manual_runs(self) -> None:
        """Python blocks run in order; a text block is the output of the block before it."""
        text = (ROOT / "docs/language-python.md").read_text()
        blocks = re.findall(r"^```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)
        names: dict[str, Any] = {"banyan": banyan}
        output = io.StringIO()
        texts = 0
        environment = dict(os.environ)
        self.addCleanup(os.environ.update, environment)
        os.environ["PYTHONPATH"] = str(Path(banyan.__file__).absolute().parents[1])
        self.addCleanup(os.chdir, os.getcwd())
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for kind, code in blocks:
                with self.subTest(code=code), contextlib.redirect_stdout(output):
                    if kind == "python":
                        output.truncate(0)
                        output.seek(0)
                        exec(compile(code, "language-python.md", "exec"), names)
                    elif kind == "text":
                        texts += 1
                        self.assertEqual(output.getvalue().strip(), code.strip())
                    elif kind == "python launch 4":
                        Path("run.py").write_text(code)
                        banyan.command("launch", "-n", 4, sys.executable, "run.py")
            self.assertIn("<svg", Path("ring.svg").read_text())
        self.assertEqual(texts, 3)

    def test_star_import_has_everything(self) -> None:
        for name in language.__all__:
            self.assertTrue(hasattr(language, name), name)


if __name__ == "__main__":
    unittest.main()
