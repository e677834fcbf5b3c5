"""The comparison of results with committed ones (make bench-check)."""

import importlib.util
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("check", ROOT / "bench/check.py")
check = importlib.util.module_from_spec(spec)
sys.modules["check"] = check
spec.loader.exec_module(check)

COLLECTIVES = """
                         longer        memcpy      Open MPI      ordinary           registered
all-reduce  2 ranks         8 B       0.01 µs       0.61 µs       0.96 µs  0.64x       0.96 µs  0.63x
all-gather  2 ranks   2097152 B     184.00 µs     240.00 µs     300.00 µs  0.80x     160.00 µs  1.50x  MISSED
all-to-all  4 ranks     32768 B       2.31 µs      26.94 µs      15.30 µs  1.76x      10.04 µs  2.68x
"""
COPIES = """10,000 tensors of 4 KiB: 4 ranks, 10000 tensors, 39.1 MiB
  mpi, ordinary              0.50 GB/s    70.13 ms      3 % of memcpy's 18.28 GB/s, prepared in 13.6 ms
  direct, symmetric         16.00 GB/s     2.56 ms     85 % of memcpy's 20.00 GB/s, 32.00 x MPI, prepared in 29.2 ms; goal 5 x MPI
"""


class Comparisons(unittest.TestCase):
    """Rounds that are known."""

    def test_a_row_that_is_slower_in_every_round_is_reported(self):
        found = check.compare({"a: x": [1.00, 1.02, 0.98]}, {"a: x": [0.80, 0.82, 0.81]})
        self.assertEqual([change.row for change in found.slower], ["a: x"])
        self.assertAlmostEqual(found.slower[0].share, -0.19)
        self.assertIn("a: x", "\n".join(check.report(found)))

    def test_rounds_that_overlap_are_noise(self):
        found = check.compare({"a: x": [1.0, 0.7, 1.3]}, {"a: x": [0.71, 0.6, 0.65]})
        self.assertEqual((found.slower, found.faster, found.same), ([], [], 1))

    def test_a_change_of_a_few_percent_is_none(self):
        found = check.compare({"a: x": [1.0, 1.001]}, {"a: x": [0.97, 0.971]})
        self.assertEqual((found.slower, found.same), ([], 1))

    def test_a_faster_row_is_no_failure(self):
        found = check.compare({"a: x": [1.0, 1.1]}, {"a: x": [2.0, 2.1]})
        self.assertEqual((len(found.faster), found.slower), (1, []))

    def test_missing_and_new_rows_are_named(self):
        found = check.compare({"a: x": [1.0], "a: y": [1.0]}, {"a: y": [1.0], "a: z": [1.0]})
        lines = "\n".join(check.report(found))
        self.assertIn("not measured, but committed: a: x", lines)
        self.assertIn("not committed (--write or --add): a: z", lines)

    def test_noise_is_the_farthest_round(self):
        self.assertAlmostEqual(check.noise_of([1.0, 1.1, 0.7]), 0.3)


class Readers(unittest.TestCase):
    """Lines of the benchmarks."""

    def test_times_become_ratios_to_limit_and_peer(self):
        found = check.read_collectives(COLLECTIVES)
        self.assertEqual(len(found), 6)
        self.assertIn("all-to-all, 4 ranks, 32768 B, registered", found)
        ratios = found["all-gather, 2 ranks, 2097152 B, ordinary"].ratios()
        self.assertAlmostEqual(ratios["limit"], 184 / 300)
        self.assertAlmostEqual(ratios["peer"], 0.8)
        self.assertEqual(list(found["all-reduce, 2 ranks, 8 B, registered"].ratios()), ["peer"])

    def test_speeds_become_ratios_to_limit_and_peer(self):
        found = check.read_copies(COPIES)
        self.assertEqual(list(found), ["10,000 tensors of 4 KiB, direct, symmetric"])
        ratios = found["10,000 tensors of 4 KiB, direct, symmetric"].ratios()
        self.assertAlmostEqual(ratios["limit"], 0.8)
        self.assertAlmostEqual(ratios["peer"], 32)

    def test_other_lines_are_read(self):
        line = "bf16 -> mxfp8      3.00    12.00       25%\n"
        self.assertAlmostEqual(check.read_transforms(line)["bf16 to mxfp8"].ratios()["limit"], 0.25)
        line = "get rows of 256 bytes, ordinary memory, cma            1.50 GB/s   18 % of 7.50,   18 % by\n"
        found = check.read_transports(line)
        self.assertAlmostEqual(found["get rows of 256 bytes, ordinary memory, cma"].ratios()["limit"], 0.2)

    def test_the_sources_print_such_lines(self):
        with open(ROOT / "bench/collectives_beside_mpi.c", encoding="utf-8") as source:
            self.assertIn("%-10s %2d ranks %9zu B %10.2f µs %10.2f µs %10.2f µs %5.2fx", source.read())
        with open(ROOT / "bench/bench_copy.c", encoding="utf-8") as source:
            self.assertIn("%-22s %8.2f GB/s %8.2f ms %6.0f %% of memcpy's %.2f GB/s", source.read())


class Commands(unittest.TestCase):
    """The whole command, with a program that prints times of this test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "bin").mkdir()
        program = self.build / "bin/bench_transform"
        program.write_text(f"#!/bin/sh\ncat {self.build}/lines\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        before, check.FOLDER = check.FOLDER, self.build
        self.addCleanup(setattr, check, "FOLDER", before)

    def run_check(self, speeds, *options):
        lines = [f"{name:<14} {speed:8.2f} {10:8.2f} {10 * speed:8.0f}%" for name, speed in speeds.items()]
        (self.build / "lines").write_text("\n".join(lines) + "\n")
        return check.main([str(self.build), "--only", "transform", "--rounds", "2", *options])

    def test_a_regression_fails_and_equal_results_pass(self):
        self.assertEqual(self.run_check({"f32 -> bf16": 8}), 77)
        self.assertEqual(self.run_check({"f32 -> bf16": 8}, "--write"), 0)
        self.assertEqual(self.run_check({"f32 -> bf16": 8}), 0)
        self.assertEqual(self.run_check({"f32 -> bf16": 9}), 0)
        self.assertEqual(self.run_check({"f32 -> bf16": 7}), 1)
        self.assertEqual(self.run_check({"f32 -> bf16": 7}, "--add"), 0)
        self.assertEqual(self.run_check({"f32 -> bf16": 7}), 0)

    def test_a_row_that_is_gone_fails(self):
        self.assertEqual(self.run_check({"f32 -> bf16": 8, "bf16 -> f32": 8}, "--write"), 0)
        self.assertEqual(self.run_check({"f32 -> bf16": 8}), 1)

    def test_a_program_without_results_is_an_error(self):
        self.assertEqual(self.run_check({"f32 -> bf16": 8}, "--write"), 0)
        with self.assertRaisesRegex(SystemExit, "transform printed no result"):
            self.run_check({})

    def test_unknown_names_are_refused(self):
        with self.assertRaisesRegex(SystemExit, "no benchmark matches 'nothing'; there are collectives-2"):
            check.main([str(self.build), "--only", "nothing"])


class Committed(unittest.TestCase):
    """The files in bench/ratios."""

    def test_files_have_the_name_of_their_machine(self):
        for path in (ROOT / "bench/ratios").glob("*.json"):
            self.assertEqual(check.file_of(json.loads(path.read_text())["machine"]).name, path.name)
            self.assertTrue(check.load(path))

    def test_the_target_is_there(self):
        told = subprocess.run(["make", "-n", "bench-check"], cwd=ROOT, capture_output=True, text=True)
        self.assertIn("bench/check.py", told.stdout, told.stderr)


os.environ.pop("MAKEFLAGS", None)
unittest.main(verbosity=2)
