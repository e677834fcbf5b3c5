"""MSCCL++'s runtime, by Banyan: programs that run plans run here, on arrays of the host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import banyan
from banyan import _core
from banyan.integrations import mscclpp
from banyan.language.channel import MemoryChannel
from banyan.language.collectives import AllGather
from banyan.language.program import CollectiveProgram
from banyan.language.rank import Rank
from banyan.language.types import SyncType
from banyan.language.utils import AlgoSpec
from ranks import FolderComm, run, seed

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: NumPy is missing: {error}")
    sys.exit(77)


def group_of(folder: str, rank: int, size: int) -> mscclpp.CommGroup:
    return mscclpp.CommGroup(FolderComm(folder, rank, size))


def write_plan(folder: str, name: str, ranks: int, **parameters: Any) -> str:
    path = f"{folder}/{name}.json"
    banyan.compile_algorithm(name, ranks, **parameters).write(path)
    return path


def values(start: int, rank: int, run_number: int, count: int) -> Any:
    return np.random.default_rng([start, rank, run_number]).integers(-999, 999, count, np.int32)


def run_plan(
    executor: mscclpp.Executor, plan: mscclpp.ExecutionPlan, rank: int, send: Any, recv: Any
) -> None:
    executor.execute(
        rank,
        send.data.ptr,
        recv.data.ptr,
        send.nbytes,
        recv.nbytes,
        mscclpp.DataType.int32,
        plan,
        0,
        mscclpp.PacketType.LL8,
    )


def raw_flow(rank: int, size: int, _: Any, folder: str, paths: dict[str, str], start: int) -> None:
    """The flow of MSCCL++'s executor_test.py, with several collectives and sizes."""
    group = group_of(folder, rank, size)
    assert (group.my_rank, group.nranks) == (rank, size)
    assert group.nranks_per_node == group.nranks_per_ipc_domain == group.ipc_domain_n_ranks == size
    executor = mscclpp.Executor(group.communicator)
    plans = {name: mscclpp.ExecutionPlan(path, rank) for name, path in paths.items()}
    group.barrier()
    for number, chunk in enumerate((1, 40, 1, 300_000)):  # the last one is loaded again
        count = chunk * size
        inputs = [values(start, r, number, count) for r in range(size)]
        total: Any = np.sum(inputs, axis=0, dtype=np.int32)
        whole = mscclpp.GpuBuffer(count, dtype=np.int32)
        assert whole.ctypes.data % 4096 == 0 and not whole.any()
        part = mscclpp.GpuBuffer((chunk,), np.int32)
        mine = mscclpp.GpuBuffer(count, np.int32)
        mine[:] = inputs[rank]
        run_plan(executor, plans["allreduce_packets"], rank, mine, whole)
        np.testing.assert_array_equal(whole, total)
        run_plan(executor, plans["reducescatter_allpairs"], rank, mine, part)
        np.testing.assert_array_equal(part, total[rank * chunk : (rank + 1) * chunk])
        part[:] = inputs[rank][:chunk]
        run_plan(executor, plans["allgather_ring"], rank, part, whole)
        np.testing.assert_array_equal(whole, np.concatenate([one[:chunk] for one in inputs]))
        run_plan(executor, plans["allreduce_twoshot"], rank, mine, mine)  # in place
        np.testing.assert_array_equal(mine, total)
        if number == 1:
            group.barrier()
            executor.reset()
    group.bootstrap.world.close()


def raw_in_place(rank: int, size: int, _: Any, folder: str, path: str) -> None:
    """An all-gather whose input is a part of the output, as cupy.split makes it."""
    group = group_of(folder, rank, size)
    executor = mscclpp.Executor(group.communicator)
    whole = mscclpp.GpuBuffer(64 * size, dtype=np.int32)
    mine = np.split(whole, size)[rank]
    mine[:] = values(5, rank, 0, 64)
    run_plan(executor, mscclpp.ExecutionPlan(path, rank), rank, mine, whole)
    np.testing.assert_array_equal(whole, np.concatenate([values(5, r, 0, 64) for r in range(size)]))
    group.bootstrap.world.close()


def raw_types(rank: int, size: int, _: Any, folder: str, path: str) -> None:
    group = group_of(folder, rank, size)
    executor = mscclpp.Executor(group.communicator)
    plan = mscclpp.ExecutionPlan(path, rank)
    for name, dtype in (("float32", np.float32), ("float16", np.float16), ("uint8", np.uint8)):
        send = mscclpp.GpuBuffer(96, dtype)
        recv = mscclpp.GpuBuffer(96, dtype)
        send[:] = np.arange(96) % 16 + rank
        sizes = (send.nbytes, recv.nbytes)
        kind = mscclpp.DataType[name]
        executor.execute(rank, send.data.ptr, recv.data.ptr, *sizes, kind, plan, 0)
        np.testing.assert_array_equal(
            recv, (np.arange(96) % 16 * size + sum(range(size))).astype(dtype)
        )
    group.bootstrap.world.close()


def expect(code: mscclpp.ErrorCode, part: str, call: Any, *args: Any) -> None:
    try:
        call(*args)
    except mscclpp.Error as error:
        assert error.args[0] is code, error.args
        assert part in str(error), error
        return
    raise AssertionError(f"{code.name} with {part!r} was expected")


def raw_errors(rank: int, size: int, _: Any, folder: str, path: str) -> None:
    code = mscclpp.ErrorCode
    wrong = code.ExecutorError
    expect(wrong, "none.json", mscclpp.ExecutionPlan, f"{folder}/none.json", 0)
    expect(wrong, f"has {size} ranks", mscclpp.ExecutionPlan, path, size)
    group = group_of(folder, rank, size)
    executor = mscclpp.Executor(group.communicator)
    plan = mscclpp.ExecutionPlan(path, rank)
    assert (plan.name, plan.collective) == ("allgather_ring", "allgather")
    assert (plan.min_message_size, plan.max_message_size) == (64, 4096)
    send, recv = mscclpp.GpuBuffer(4096, np.int32), mscclpp.GpuBuffer(4096 * size, np.int32)

    def call(sent: int, received: int, as_rank: int = rank) -> None:
        executor.execute(
            as_rank,
            send.data.ptr,
            recv.data.ptr,
            sent,
            received,
            mscclpp.DataType.int32,
            plan,
            0,
        )

    expect(wrong, "no message with 64 bytes of input and 64 of output", call, 64, 64)
    expect(wrong, "is not within the valid range", call, 4, 4 * size)
    expect(wrong, "for messages of 64 to 4096 bytes", call, 4096, 4096 * size)
    expect(code.InvalidUsage, f"rank {rank + 1} was passed on", call, 64, 64 * size, rank + 1)
    call(64, 64 * size)
    done = Path(folder) / "done"
    if rank == 0:
        done.touch()
    else:
        while not done.exists():
            time.sleep(0.001)
        group.bootstrap.world.abort("enough")
    expect(code.Aborted, "enough", call, 64, 64 * size)
    try:
        call(64, 64 * size)
    except mscclpp.Error as error:
        assert isinstance(error.__cause__, banyan.Aborted)


def raw_trio(rank: int, size: int, _: Any, port: int) -> None:
    os.environ["BANYAN_SECRET"] = "5" * 32
    group = mscclpp.CommGroup(interfaceIpPortTrio=f"lo:127.0.0.1:{port}", rank=rank, size=size)
    group.barrier()
    assert group.bootstrap.get_n_ranks() == size and group.bootstrap.get_rank() == rank
    expect(
        mscclpp.ErrorCode.InvalidUsage, "initialized already", group.bootstrap.initialize, "lo:x:1"
    )
    group.bootstrap.world.close()


def all_pairs(spec: AlgoSpec) -> CollectiveProgram:
    """An all-gather in MSCCL++'s language."""
    n = spec.world_size
    with CollectiveProgram.from_spec(spec) as program:
        for rank in range(n):
            for peer in range(n):
                if peer == rank:
                    continue
                channel = MemoryChannel(peer, rank)
                channel.signal(tb=0, relaxed=True)
                channel.wait(tb=0, relaxed=True, data_sync=SyncType.after)
                mine = Rank(rank).get_output_buffer()[rank : rank + 1]
                channel.put(Rank(peer).get_output_buffer()[rank : rank + 1], mine, tb=0)
                channel.signal(tb=0, data_sync=SyncType.before)
                channel.wait(tb=0, data_sync=SyncType.after)
    return program


def raw_compiled(rank: int, size: int, _: Any, folder: str) -> None:
    group = group_of(folder, rank, size)
    spec = AlgoSpec("mine", AllGather(size, 1, True), size, size, True, 1, "Simple", tags={"a": 3})
    algorithm = mscclpp.compile(algo=all_pairs, algo_spec=spec, rank=rank)
    assert (algorithm.name, algorithm.collective, algorithm.tags) == ("mine", "allgather", {"a": 3})
    assert algorithm.is_dsl_algorithm() and not algorithm.is_native_algorithm()
    assert algorithm.message_size_range == (0, 2**64 - 1)
    whole = mscclpp.GpuBuffer(32 * size, np.int32)
    mine = np.split(whole, size)[rank]
    mine[:] = rank + 1
    arguments = {
        "comm": group.communicator,
        "input_buffer": mine.ctypes.data,
        "output_buffer": whole.data.ptr,
        "input_size": mine.nbytes,
        "output_size": whole.nbytes,
        "dtype": mscclpp.DataType.int32,
    }
    expect(
        mscclpp.ErrorCode.InvalidUsage, "needs an executor", lambda: algorithm.execute(**arguments)
    )
    executor = mscclpp.Executor(group.communicator)
    assert algorithm.execute(executor=executor, **arguments) == 0
    np.testing.assert_array_equal(whole, np.repeat(np.arange(size) + 1, 32))
    group.bootstrap.world.close()


#: Run with the module's names registered: the program's own imports do not change.
UNCHANGED = """
    import banyan.compat.mscclpp
    import mscclpp
    import numpy as np
    from mscclpp import CommGroup, DataType, Executor, ExecutionPlan, GpuBuffer, PacketType
    from mscclpp import env, is_nvls_supported, npkit
    from mscclpp.utils import pack
    import mscclpp.language.program
    import mscclpp.utils

    assert env().npkit_dump_dir == "" and not is_nvls_supported()
    npkit.init(0); npkit.dump(""); npkit.shutdown()
    buffer = GpuBuffer((2, 3), dtype=np.float16)
    assert pack(7, buffer)[:4] == b"\\7\\0\\0\\0" and len(pack(7, buffer)) == 12
    assert DataType is mscclpp.utils.torch_dtype_to_mscclpp_dtype.__globals__["DataType"]
    try:
        mscclpp.ProxyService
    except AttributeError as error:
        print(error)
"""


class Runtime(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_the_flow_of_executor_test(self) -> None:
        names = ("allreduce_packets", "reducescatter_allpairs", "allgather_ring")
        paths = {name: write_plan(self.folder, name, 3) for name in names}
        path = write_plan(self.folder, "allreduce_twoshot", 3, in_place=True)
        run(3, raw_flow, self.folder, {**paths, "allreduce_twoshot": path}, seed())

    def test_inputs_that_are_parts_of_outputs(self) -> None:
        path = write_plan(self.folder, "allgather_direct", 2, in_place=True)
        run(2, raw_in_place, self.folder, path)

    def test_adapted_plans(self) -> None:
        path = f"{self.folder}/adapted.json"
        plan = banyan.compile_algorithm("allgather_allpairs", 2, in_place=True)
        plan.adapt("mscclpp").write(path)
        run(2, raw_in_place, self.folder, path)

    def test_types(self) -> None:
        run(2, raw_types, self.folder, write_plan(self.folder, "allreduce_oneshot", 2))

    def test_errors_have_codes_and_messages(self) -> None:
        path = write_plan(self.folder, "allgather_ring", 2)
        text = Path(path).read_text()
        text = text.replace('"min_message_size": 0', '"min_message_size": 64')
        text = text.replace(f'"max_message_size": {2**64 - 1}', '"max_message_size": 4096')
        Path(path).write_text(text)
        run(2, raw_errors, self.folder, path)

    def test_groups_of_an_interface_and_a_port(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        run(2, raw_trio, port)

    def test_programs_are_compiled_and_executed(self) -> None:
        run(3, raw_compiled, self.folder)

    def test_groups_of_nothing(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "Either the interface or mpi_group"):
            mscclpp.CommGroup()
        create = mscclpp.TcpBootstrap.create
        with self.assertRaisesRegex(mscclpp.Error, "rank 3 is not in a group of 3 ranks"):
            create(3, 3)
        with self.assertRaisesRegex(mscclpp.Error, '"eth0" is not "interface:address:port"'):
            create(0, 1).initialize("eth0")
        with self.assertRaisesRegex(mscclpp.Error, "the bootstrap is not initialized"):
            mscclpp.Executor(mscclpp.Communicator(create(0, 1)))

    def test_buffers(self) -> None:
        buffer = mscclpp.GpuBuffer([4, 6], dtype=np.float32, order="F")
        self.assertEqual((buffer.shape, buffer.flags.f_contiguous), ((4, 6), True))
        self.assertEqual(buffer[:, 2:].data.ptr, buffer.ctypes.data + 4 * 2 * 4)
        self.assertEqual(_core._locate(buffer.data.ptr), (1, 0))
        self.assertEqual(mscclpp.GpuBuffer(3).dtype, np.float64)
        with self.assertRaisesRegex(ValueError, "Shape must be positive"):
            mscclpp.GpuBuffer((4, 0))
        with self.assertRaisesRegex(ValueError, "Shape must be a tuple-like or an integer"):
            mscclpp.GpuBuffer(2.5)  # type: ignore[arg-type]

    def test_programs_run_unchanged(self) -> None:
        script = Path(self.folder) / "unchanged.py"
        script.write_text("\n".join(line[4:] for line in UNCHANGED.splitlines()))
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("module 'mscclpp', by Banyan, has no attribute 'ProxyService'", done.stdout)


if __name__ == "__main__":
    unittest.main()
