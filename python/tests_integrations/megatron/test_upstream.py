"""Megatron-LM's own tests of resharding, unmodified, on our names; ours on the newest Megatron-LM.

BANYAN_MEGATRON_LM is the folder of a checkout. Without it, the commit below is downloaded.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import urllib.request
from pathlib import Path

COMMIT = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
URL = f"https://codeload.github.com/NVIDIA/Megatron-LM/tar.gz/{COMMIT}"
HERE = Path(__file__).resolve().parent
TESTS = Path("tests/unit_tests/resharding")
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


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(77)


def checkout() -> Path:
    """Return the folder of Megatron-LM's sources."""
    given = os.environ.get("BANYAN_MEGATRON_LM")
    if given:
        return Path(given)
    folder = Path(os.environ.get("BANYAN_BUILD", tempfile.gettempdir())) / f"megatron-lm-{COMMIT}"
    if folder.exists():
        return folder
    try:
        with urllib.request.urlopen(URL, timeout=60) as answer:
            data = answer.read()
    except OSError as error:
        skip(f"cannot download {URL}: {error} (BANYAN_MEGATRON_LM names a checkout)")
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(made)
        shutil.move(str(Path(made) / f"Megatron-LM-{COMMIT}"), folder)
    return folder


def call(words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    paths = os.environ.get("PYTHONPATH", "").split(":")
    path = ":".join(map(os.path.abspath, (MEGATRON, HERE, *filter(None, paths))))
    environment = os.environ | {"PYTHONPATH": path, **variables}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *words],
        cwd=MEGATRON,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
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
    done = call(["-m", "pytest", *options, *files], BANYAN_TEST_OURS="1" if ours else "")
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
                done = call([str(HERE / f"test_{name}.py")])
                self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-6000:])


if __name__ == "__main__":
    if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("megatron") is None:
        skip("pytest or Megatron-Core is not installed (make test-megatron installs them)")
    MEGATRON = checkout()
    unittest.main()
