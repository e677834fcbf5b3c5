"""Ranks that mpirun starts find each other through PMIx."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
HELLO = BUILD / "bin/example_hello"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# libpmix leaks a few bytes of its own.
NO_LEAK_CHECK = {"ASAN_OPTIONS": "detect_leaks=0"}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def mpirun(ranks, *arguments, **variables):
    return subprocess.run(["mpirun", "--oversubscribe", "-n", str(ranks), *map(str, arguments)],
                          capture_output=True, text=True, timeout=120,
                          env={**os.environ, **AS_ROOT, **NO_LEAK_CHECK, **variables})


class Mpirun(unittest.TestCase):
    def assert_met(self, done, ranks):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"rank (\d+) of (\d+), node 0 of 1", done.stdout)),
                         [(str(rank), str(ranks)) for rank in range(ranks)])

    def test_ranks_meet(self):
        for ranks in (1, 2, 4):
            self.assert_met(mpirun(ranks, HELLO), ranks)

    def test_other_variables_come_first(self):
        done = mpirun(2, HELLO, RANK="0", WORLD_SIZE="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("rank 0 of 1"), 2)

    def test_a_job_manager_that_does_not_answer_is_an_error(self):
        done = subprocess.run([HELLO], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PMIX_RANK": "0", "PMIX_NAMESPACE": "nobody"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("no PMIx server answers", done.stderr)


if not shutil.which("mpirun"):
    skip("there is no mpirun")
if not (BUILD / "lib/libbanyan_pmix.so").exists():
    skip("this build has no PMIx module")
done = unittest.main(argv=[sys.argv[0], "-v"], exit=False)
sys.exit(not done.result.wasSuccessful())
