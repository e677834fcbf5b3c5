"""What Python costs: collectives of 8 bytes over the call of C, runs of plans by MSCCL++'s names,
tensors of copies and layouts, and the import. Each figure beside its limit.

usage: python.py BUILD, under `banyan launch -n 2`, with the package in PYTHONPATH
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import banyan
from banyan.integrations import mscclpp

RUNS, ROUNDS = 200, 300
TENSORS = 10_000
#: Limits: microseconds over the call of C, microseconds a tensor, milliseconds of the import.
CALL_US, TENSOR_US, IMPORT_MS = 0.5, 1.0, 50.0

missed = False


def row(what: str, value: float, limit: float | None, unit: str, beside: str = "") -> None:
    """Print a line, and remember a goal that is missed."""
    global missed
    text = "" if limit is None else f"  at most {limit:g} {unit}"
    if limit is not None and value > limit:
        missed = True
        text += "  MISSED"
    print(f"{what:<58} {value:8.2f} {unit}{text}{beside}", flush=True)


def calls(world: banyan.World, build: Path) -> None:
    """Time all-reduces of 8 bytes from C and from Python in turn, on both ranks."""
    library = ctypes.CDLL(str(build / "lib/libbench_python_calls.so"))
    library.python_calls_open.restype = ctypes.c_void_p
    library.python_calls_allreduce_s.restype = ctypes.c_double
    library.python_calls_allreduce_s.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.python_calls_close.argtypes = [ctypes.c_void_p]
    unique_id = banyan.UniqueId() if world.rank == 0 else None
    identity = world.broadcast(b"" if unique_id is None else bytes(unique_id))
    opened = library.python_calls_open(identity, world.rank, world.size)
    assert opened, "the communicator of C cannot be opened"

    comm = banyan.Communicator(world)
    memory = banyan.alloc(world, 1 << 16)
    comm.register(memory)
    array = memory.array(2, "float32")
    tensors: dict[str, Any] = {
        "Array": array,
        "NumPy": array.numpy(),
        "memoryview": memoryview(array),
    }
    with contextlib.suppress(ModuleNotFoundError):
        tensors["PyTorch"] = array.torch()
    of_c: list[float] = []
    of_python: dict[str, list[float]] = {name: [] for name in tensors}
    all_reduce = comm.all_reduce
    array.numpy()[:] = 0
    for _ in range(ROUNDS):
        of_c.append(library.python_calls_allreduce_s(opened, 2, RUNS))
        for name, tensor in tensors.items():
            world.barrier()
            began = time.perf_counter()
            for _ in range(RUNS):
                all_reduce(tensor)
            of_python[name].append((time.perf_counter() - began) / RUNS)
    library.python_calls_close(opened)
    if world.rank == 0:
        c = min(of_c) * 1e6
        row("all-reduce of 8 bytes from C, 2 ranks, registered", c, None, "us")
        for name, times in of_python.items():
            mine = min(times) * 1e6
            beside = f"  ({mine:.2f} us in all)"
            row(f"  more from Python, {name}", mine - c, CALL_US, "us", beside)


def plans(world: banyan.World) -> None:
    """Time runs of a plan by Banyan's call and by MSCCL++'s in turn, on both ranks."""
    plan = banyan.compile_algorithm("allreduce_packets", world.size)
    loaded = banyan.Executor(world).load(plan, 4096)
    send, recv = mscclpp.GpuBuffer(16, "float32"), mscclpp.GpuBuffer(16, "float32")
    bootstrap = mscclpp.TcpBootstrap.create(world.rank, world.size)._adopt(world)
    executor = mscclpp.Executor(mscclpp.Communicator(bootstrap))
    arguments = (
        world.rank,
        send.data.ptr,
        recv.data.ptr,
        send.nbytes,
        recv.nbytes,
        mscclpp.DataType.float32,
        mscclpp.ExecutionPlan._of(plan, world.rank),
        0,
    )
    times: tuple[list[float], list[float]] = ([], [])
    both: tuple[Callable[[], object], ...] = (
        lambda: loaded.run(send, recv),
        lambda: executor.execute(*arguments),
    )
    for _ in range(ROUNDS):
        for i, call in enumerate(both):
            world.barrier()
            began = time.perf_counter()
            for _ in range(RUNS):
                call()
            times[i].append((time.perf_counter() - began) / RUNS)
    if world.rank == 0:
        run, execute = (min(one) * 1e6 for one in times)
        row("LoadedPlan.run of 64 bytes, 2 ranks", run, None, "us")
        beside = f"  ({execute:.2f} us in all)"
        row("  more from MSCCL++'s Executor.execute", execute - run, CALL_US, "us", beside)


def best(function: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some runs."""
    times = []
    for _ in range(30):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def tensors(world: banyan.World) -> None:
    """Time 10,000 tensors that come into a copy service and into layouts."""
    array = np.zeros((TENSORS, 4), np.float32)
    views = list(array)
    names = [f"model.layers.{i}.weight" for i in range(TENSORS)]
    shapes = [(16, 4)] * TENSORS
    placements = [banyan.Shard(0)]
    mesh = banyan.Mesh((world.size,))
    service = banyan.CopyService(world)
    ids = list(range(TENSORS))

    def send() -> None:
        with banyan.CopyService(world) as fresh:
            fresh.submit_sends(views, world.rank, ids)

    def each() -> None:
        layout = banyan.Layout()
        for name, shape in zip(names, shapes, strict=True):
            layout.add_tensor(name, "float32", shape)

    opening = best(lambda: banyan.CopyService(world).close())
    figures = [
        ("sends of a copy service", best(send) - opening),
        ("tensors of a layout, add_tensors",
         best(lambda: banyan.Layout().add_tensors(names, "float32", shapes))),
        ("tensors of a layout, add_sharded_many",
         best(lambda: banyan.Layout().add_sharded_many(
             names, "float32", shapes, mesh, placements, world.rank))),
        ("tensors of a layout, a call for each", best(each)),
    ]  # fmt: skip
    whole = banyan.Layout()
    whole.add_tensors(names, "float32", [(4,)] * TENSORS)
    figures.append(("tensors of a set", best(lambda: banyan.Tensors(whole, views))))
    service.close()
    if world.rank == 0:
        for what, seconds in figures:
            row(f"{TENSORS:,} {what}, each", seconds / TENSORS * 1e6, TENSOR_US, "us")


def imports() -> None:
    """Time the import in fresh processes."""
    code = (
        "import sys, time; began = time.perf_counter(); import banyan; "
        "took = time.perf_counter() - began; assert not {'torch', 'numpy'} & set(sys.modules); "
        "print(took)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(9)
    ]
    row("import banyan, without NumPy and PyTorch", min(times) * 1e3, IMPORT_MS, "ms")


def main() -> int:
    """Print every figure on rank 0; the exit code is 1 if a goal is missed."""
    with banyan.World() as world:
        calls(world, Path(sys.argv[1]))
        plans(world)
        tensors(world)
        if world.rank == 0:
            imports()
        world.barrier()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
