"""Megatron-LM's own tests of resharding, unmodified, on our names; our tests on Megatron-LM."""

from __future__ import annotations

import re
import unittest

from sources import HERE, TESTS, call, checkout

#: Without tests of whole models on several GPUs (test_model_swap.py).
FILES = (
    "test_cache_refresh",
    "test_communication_scheduler",
    "test_copy_services",
    "test_dp_balancing",
    "test_execution",
    "test_mxfp8_refit",
    "test_planner",
    "test_refit_cache",
    "test_task_segmenter",
    "test_workload_packer",
)


def upstream(*, ours: bool) -> dict[str, int]:
    """Run Megatron-LM's tests. Return the numbers of those that passed, failed, ..."""
    files = [str(MEGATRON / TESTS / f"{name}.py") for name in FILES]
    options = [
        "-q",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-p",
        "upstream_plugin",
        "-W",
        "ignore",
    ]
    done = call(MEGATRON, ["-m", "pytest", *options, *files], BANYAN_TEST_OURS="1" if ours else "")
    print(done.stdout[-1500:], flush=True)
    if done.returncode not in (0, 1):
        raise AssertionError(done.stdout + done.stderr)
    found = re.findall(r"(\d+) (passed|failed|skipped|errors?)", done.stdout.splitlines()[-1])
    counts = {what: int(number) for number, what in found}
    if ours:
        replaced = re.search(r"ours in (\d+) places", done.stdout + done.stderr)
        assert replaced and int(replaced[1]) >= 20, done.stdout[:500]
    return counts


class Upstream(unittest.TestCase):
    def test_their_tests(self) -> None:
        theirs, ours = upstream(ours=False), upstream(ours=True)
        print(f"Megatron-LM's tests: {theirs} with theirs, {ours} with ours")
        self.assertEqual(ours, theirs)
        self.assertGreater(ours["passed"], 100)
        self.assertLessEqual(ours.keys(), {"passed", "skipped"})

    def test_our_tests_on_the_newest_release(self) -> None:
        for name in ("execution", "pipeline", "reshard", "service"):
            with self.subTest(name):
                done = call(MEGATRON, [str(HERE / f"test_{name}.py")])
                self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-6000:])


if __name__ == "__main__":
    MEGATRON = checkout()
    unittest.main()
