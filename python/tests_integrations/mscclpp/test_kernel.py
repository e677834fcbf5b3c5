"""Adapted plans are right on MSCCL++'s own kernel and reader of plans, compiled for the host.

kernel/ stands in for CUDA: threads are fibers, which a random schedule interleaves with proxies.
It needs g++ and the package nlohmann-json3-dev.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

import numpy as np
import source

import banyan

HERE = Path(__file__).resolve().parent / "kernel"
FILES = [
    "include/mscclpp/executor.hpp",
    "src/core/executor/execution_plan.cc",
    "src/core/include/execution_common.hpp",
    "src/core/include/execution_kernel.hpp",
    "src/core/include/execution_plan.hpp",
]
#: MSCCL++'s headers that host_device.hpp replaces.
REPLACED = [
    *("debug.h", "logger.hpp", "reduce_kernel.hpp"),
    *(
        f"mscclpp/{name}.hpp"
        for name in (
            *("core", "gpu", "device", "gpu_data_types", "concurrency_device", "packet_device"),
            *("memory_channel", "port_channel", "switch_channel", "switch_channel_device", "utils"),
        )
    ),
]
CHUNK, RUNS, THREADS = 96, 4, 8
NEEDS_GLRE = {"reducescatter_switch", "reducescatter_switch_direct"}


def compile_host(checkout: Path, folder: Path) -> Path:
    """Compile MSCCL++'s kernel with the stand-ins; return the program."""
    for name in FILES:
        to = folder / ("mscclpp/" if "mscclpp/executor" in name else "") / Path(name).name
        to.parent.mkdir(exist_ok=True)
        # Shared memory is defined, and exchanged between blocks, by host.cpp.
        text = (checkout / name).read_text().replace("extern __shared__ int4 sharedMem[];", "")
        to.write_text(text)
    for name in REPLACED:
        (folder / name).write_text('#include "host_device.hpp"\n')
    made = folder / "host"
    words = ["g++", "-std=c++17", "-O1", "-w", f"-I{HERE}", f"-I{folder}", str(HERE / "host.cpp")]
    words += [str(folder / "execution_plan.cc"), "-o", str(made)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr[:4000])
    return made


def outputs_of(plan: banyan.Plan, inputs: list[bytes]) -> list[bytes | None]:
    """Return the output of each rank, by the definition of the collective."""
    size, ranks = len(inputs[0]), plan.ranks
    block = size // ranks
    total = np.sum([np.frombuffer(one, np.uint32) for one in inputs], axis=0, dtype=np.uint32)
    summed = total.tobytes()
    mine = [slice(r * block, (r + 1) * block) for r in range(ranks)]
    kind = plan.collective
    if kind == "allreduce":
        return [summed] * ranks
    if kind == "reduce":
        return [summed if r == plan.root else None for r in range(ranks)]
    if kind == "reducescatter":
        return [summed[part] for part in mine]
    if kind == "allgather":
        return [b"".join(inputs)] * ranks
    if kind == "alltoall":
        return [b"".join(one[part] for one in inputs) for part in mine]
    if kind == "broadcast":
        return [inputs[plan.root]] * ranks
    assert kind == "sendrecv", kind
    return [inputs[(r - plan.shift) % ranks] for r in range(ranks)]


class Kernel(unittest.TestCase):
    host: ClassVar[Path]

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def play(self, plan: banyan.Plan, seed: int, packet: int = 16) -> tuple[int, str]:
        """Return the exit code of the runs, and what was wrong."""
        chunks = plan.json().split('"input_chunks": ')[1].split(",")[0]
        size = CHUNK * int(chunks)
        sizes = plan.sizes(0, size)
        inputs, outputs = b"", b""
        numbers = random.Random(seed)
        for _ in range(RUNS):
            mine = [numbers.randbytes(sizes[0]) for _ in range(plan.ranks)]
            inputs += b"".join(mine)
            for one in outputs_of(plan, mine):
                outputs += bytes([one is not None]) + (one or bytes(sizes[1]))
        plan.write(self.folder / "plan.json")
        (self.folder / "data").write_bytes(inputs + outputs)
        words = [self.host, self.folder / "plan.json", self.folder / "data", *sizes]
        words += [RUNS, seed, packet, THREADS]
        done = subprocess.run([str(one) for one in words], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_adapted_plans_are_right(self) -> None:
        right = total = 0
        for ranks in (3, 4, 8):
            for algorithm in banyan.algorithms():
                plan = banyan.compile_algorithm(algorithm.name, ranks)
                total += 1
                try:
                    plan = plan.adapt("mscclpp")
                except banyan.Unsupported as error:
                    too_large = re.search("at most (64|16) are possible", str(error))
                    self.assertTrue(algorithm.name in NEEDS_GLRE or too_large, str(error))
                    continue
                for seed in range(2 if ranks < 8 else 1):
                    code, said = self.play(plan, seed, (16, 8)[seed % 2])
                    self.assertEqual(code, 0, f"{algorithm.name} of {ranks} ranks: {said}")
                right += 1
        print(f"{right} of {total} plans are right on MSCCL++'s kernel, the others are refused")
        self.assertEqual((right, total), (217, 225))

    def test_plans_that_the_check_refuses_go_wrong(self) -> None:
        sound = wrong = 0
        for algorithm in banyan.algorithms():
            plan = banyan.compile_algorithm(algorithm.name, 3)
            code, said = self.play(plan, 1)
            if plan.check(executor="mscclpp", warnings=False).is_sound:
                self.assertEqual(code, 0, f"{algorithm.name}: {said}")
                sound += 1
            else:
                wrong += code in (1, 2, 3) or code < 0
        print(f"as they are: {sound} plans are right, {wrong} go wrong")
        self.assertGreaterEqual(sound, 20)
        self.assertGreaterEqual(wrong, 30)


if __name__ == "__main__":
    if not Path("/usr/include/nlohmann/json.hpp").exists():
        print("skipped: the package nlohmann-json3-dev is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as built:
        Kernel.host = compile_host(source.checkout(folder, FILES), Path(built))
        unittest.main()
