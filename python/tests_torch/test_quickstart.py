"""The program of the quick start is the file in examples, and prints what the page has."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
from pathlib import Path

import groups  # noqa: F401  skips the test without PyTorch

ROOT = Path(__file__).resolve().parents[2]


class QuickStartTest(unittest.TestCase):
    def test_program(self) -> None:
        page = (ROOT / "docs/quickstart/pytorch.md").read_text()
        example = ROOT / "examples/reshard_torch.py"
        programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        self.assertEqual(programs, [example.read_text()])
        printed = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
        self.assertIn("    torchrun --nproc-per-node 4 examples/reshard_torch.py\n", page)
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", example],
            capture_output=True,
            text=True,
            timeout=250,
        )
        self.assertEqual((done.returncode, [done.stdout]), (0, printed), done.stderr)


if __name__ == "__main__":
    unittest.main()
