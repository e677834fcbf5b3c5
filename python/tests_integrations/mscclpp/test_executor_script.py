"""MSCCL++'s own executor_test.py, unchanged, with plans of MSCCL++'s own example programs.

The script runs on the host: machine.py stands in for CuPy, mpi4py and the verifying kernels.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

import machine
import source

SCRIPT = "python/test/executor_test.py"
PROGRAMS = "python/mscclpp/language/tests/single_node/"
#: Program, in place, bytes, type.
CASES = [
    ("allgather_pkt_rppkt.py", True, "24K", "float16"),
    ("allgather_pkt.py", True, "3K", "float32"),
    ("allreduce.py", True, "96K", "float16"),
    ("allreduce_naivy.py", True, "6K", "float32"),
    ("allreduce_pkt.py", True, "768", "float16"),
    ("alltoall/alltoall.py", False, "96K", "float32"),
    ("alltoall/alltoall_ring_oop.py", False, "96K", "float16"),
]
RANKS = 3
#: Runs that the script verifies.
RUNS = 10


def play_rank(checkout: str, folder: str, rank: int, arguments: list[str]) -> None:
    machine.install(folder, rank, RANKS)
    sys.argv = [SCRIPT, *arguments]
    runpy.run_path(str(Path(checkout) / SCRIPT), run_name="__main__")
    print(f"verified {machine.KernelBuilder.verified}")


class ExecutorTest(unittest.TestCase):
    source: ClassVar[Path]

    def plan_of(self, program: str, folder: str) -> Path:
        script = str(self.source / PROGRAMS / program)
        words = [sys.executable, "-m", "banyan.compat.mscclpp", script]
        words += ["--name", "tested", "--num_gpus", str(RANKS)]
        done = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        path = Path(folder) / "plan.json"
        path.write_text(done.stdout)
        return path

    def play(self, program: str, in_place: bool, size: str, kind: str, folder: str) -> None:
        arguments = ["-path", str(self.plan_of(program, folder)), "--size", size, "--dtype", kind]
        arguments += ["--in_place"] if in_place else []
        words = [sys.executable, __file__, str(self.source), folder]
        ranks = [
            subprocess.Popen(
                [*words, str(rank), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(RANKS)
        ]
        for rank, process in enumerate(ranks):
            said = process.communicate(timeout=120)[0]
            self.assertEqual(process.returncode, 0, said)
            self.assertIn(f"verified {RUNS}\n", said)
            self.assertIn(f"Rank: {rank} Execution time: ", said)

    def test_its_verifier_accepts_the_results_of_its_programs(self) -> None:
        for case in CASES:
            with self.subTest(program=case[0]), tempfile.TemporaryDirectory() as folder:
                self.play(*case, folder)


if __name__ == "__main__":
    if len(sys.argv) > 4:
        play_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
        sys.exit(0)
    with tempfile.TemporaryDirectory() as downloads:
        names = [SCRIPT, SCRIPT.replace("executor_test.py", "executor_test_verifier.cu")]
        names += [PROGRAMS + case[0] for case in CASES]
        ExecutorTest.source = source.checkout(downloads, names)
        unittest.main()
