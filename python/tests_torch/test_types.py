"""mypy accepts banyan.torch and the integrations, beside PyTorch's own types."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import unittest
from pathlib import Path

from groups import banyan


class Types(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_mypy(self) -> None:
        package = Path(banyan.__file__).parent
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                str(package / "torch"),
                str(package / "integrations"),
            ],
            cwd=Path(__file__).resolve().parents[2],
            env=os.environ | {"MYPYPATH": str(package.parent)},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
