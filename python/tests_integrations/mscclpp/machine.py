"""Stand-ins for CuPy, mpi4py and kernels, with which MSCCL++'s executor_test.py runs on the host.

Arrays are NumPy's. Streams do what they are told at once, so a captured graph has been executed
when the capture ends. Kernels fill and verify data as executor_test_verifier.cu defines them.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import time
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from ranks import FolderComm

THREADS, BLOCKS = 1024, 64
KINDS: dict[str, Any] = {"float16": np.float16, "float32": np.float32, "int32": np.int32}
EPSILONS = {"float16": 9.765625e-4, "float32": 1.1920929e-7, "int32": 0.0}


class Stream:
    ptr = 0

    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin_capture(self) -> None:
        pass

    def end_capture(self) -> Stream:
        return self

    def launch(self, stream: Stream) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Event:
    at = 0.0

    def record(self, stream: Stream) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass


def array_at(address: int, count: int, dtype: Any) -> Any:
    raw = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


def filled(count: int, rank: int, seq: int, dtype: Any) -> Any:
    """Return what the kernel fill_data writes: a generator for each thread."""
    values = np.empty(count, dtype)
    seeds = np.arange(THREADS * BLOCKS, dtype=np.uint32) + np.uint32(rank + seq)
    for first in range(0, count, THREADS * BLOCKS):
        seeds = seeds * np.uint32(1664525) + np.uint32(1013904223)
        part = seeds[: count - first] % THREADS
        whole = np.issubdtype(dtype, np.integer)
        values[first : first + len(part)] = (
            part // THREADS if whole else part.astype(dtype) / dtype(THREADS)
        )
    return values


class KernelBuilder:
    """A kernel of executor_test_verifier.cu, by its name."""

    verified = 0

    def __init__(self, file: str, kernel_name: str, file_dir: str) -> None:
        assert file == "executor_test_verifier.cu" and Path(file_dir, file).exists()
        self.name, self.kind = kernel_name, kernel_name.rpartition("_")[2]

    def get_compiled_kernel(self) -> KernelBuilder:
        return self

    def launch_kernel(
        self, params: bytes, nblocks: int, nthreads: int, shared: int, stream: Any
    ) -> None:
        assert (nblocks, nthreads) == (BLOCKS, THREADS)
        if self.name.startswith("fill_data_"):
            address, count, rank, seq, _ = struct.unpack("=QQiii", params)
            array_at(address, count, KINDS[self.kind])[:] = filled(
                count, rank, seq, KINDS[self.kind]
            )
        else:
            self.verify(*struct.unpack("=QQQiiii", params))

    def verify(
        self, result: int, test: int, count: int, ranks: int, rank: int, seq: int, mask: int
    ) -> None:
        dtype = KINDS[self.kind]
        inputs = [filled(count, r, seq, dtype) for r in range(ranks)]
        mine = slice(rank * (count // ranks), (rank + 1) * (count // ranks))
        collective = self.name.removeprefix("test_data_").removesuffix(f"_{self.kind}")
        right = {
            "all_gather": lambda: np.concatenate(inputs),
            "all_to_all": lambda: np.concatenate([one[mine] for one in inputs]),
            "all_reduce": lambda: np.sum(inputs, axis=0, dtype=np.float64),
            "reduce_scatter": lambda: np.sum(inputs, axis=0, dtype=np.float64)[mine],
        }[collective]()
        found = array_at(result, len(right), dtype).astype(np.float64)
        exact = collective in ("all_gather", "all_to_all")
        bound = 0 if exact else EPSILONS[self.kind] * ranks * (1 + np.abs(right))
        assert (np.abs(found - right) <= bound).all(), f"{self.name} of rank {rank}, run {seq}"
        KernelBuilder.verified += 1


def install(folder: str, rank: int, size: int) -> None:
    """Register the stand-ins, and Banyan under MSCCL++'s name."""
    import banyan.compat.mscclpp  # noqa: F401

    cupy: Any = types.ModuleType("cupy")
    for name in ("float16", "float32", "int32", "ndarray", "dtype", "zeros", "split"):
        setattr(cupy, name, getattr(np, name))
    cupy.cuda = types.SimpleNamespace(
        Stream=Stream,
        Event=Event,
        Device=lambda number: types.SimpleNamespace(use=lambda: None),
        get_elapsed_time=lambda start, end: (end.at - start.at) * 1e3,
        is_available=lambda: False,
    )
    cupy.__spec__ = ModuleSpec("cupy", None)
    mpi: Any = types.ModuleType("mpi4py")
    mpi.MPI = types.SimpleNamespace(COMM_WORLD=FolderComm(folder, rank, size))
    sys.modules.update(cupy=cupy, mpi4py=mpi)
    sys.modules["mscclpp.utils"].KernelBuilder = KernelBuilder  # type: ignore[attr-defined]
