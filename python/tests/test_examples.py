"""The README's example in Python is the file in examples, and runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BANYAN = Path(os.environ["BANYAN_BUILD"]).resolve() / "bin/banyan"


class ExamplesTest(unittest.TestCase):
    def test_readme(self) -> None:
        programs = re.findall(
            r"`examples/(\w+)\.py`.*:\n\n```python\n(.*?)```\n\n    (.*)\n",
            (ROOT / "README.md").read_text(),
            re.DOTALL,
        )
        self.assertEqual([name for name, _, _ in programs], ["reshard"])
        _, program, command = programs[0]
        self.assertEqual(program, (ROOT / "examples/reshard.py").read_text())
        # The build may be another folder, with another Python.
        words = [*command.split()[1:-2], sys.executable, *command.split()[-1:]]
        self.assertEqual(words[:5], ["build/bin/banyan", "launch", "-n", "4", "--"])
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        done = subprocess.run(
            [str(BANYAN), *words[1:]], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = [f"rank {rank} holds version 3" for rank in range(4)]
        self.assertEqual(sorted(done.stdout.splitlines()), lines)


if __name__ == "__main__":
    unittest.main()
