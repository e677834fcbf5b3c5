"""mypy accepts banyan.torch and the integrations, beside PyTorch's own types."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
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

    @unittest.skipUnless(importlib.util.find_spec("basedpyright"), "basedpyright is not installed")
    def test_pyright(self) -> None:
        package = Path(banyan.__file__).parent
        config = {
            "include": [str(package / "torch")],
            "extraPaths": [str(package.parent)],
            "pythonVersion": "3.10",
            "typeCheckingMode": "standard",
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(config, file)
            file.flush()
            words = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
            done = subprocess.run([*words, "--project", file.name], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
