"""Type checkers and the linter are content with the package, its stubs and its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(os.environ["BANYAN_BUILD"]).resolve() / "python"
TESTS = ROOT / "python/tests"
BENCH = str(ROOT / "bench/python.py")
FILES = [str(PACKAGE / "banyan"), str(TESTS), BENCH]
#: What PyTorch's users need is checked by `make test-torch`, where PyTorch is installed.
WITHOUT_TORCH = ("/banyan/torch/", "/banyan/integrations/")


def tool(name: str, *arguments: str) -> None:
    """Run a tool of this interpreter's environment; it must be content."""
    environment = os.environ | {"MYPYPATH": f"{PACKAGE}:{TESTS}"}
    done = subprocess.run(
        [Path(sys.executable).parent / name, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise AssertionError(f"{name}: {done.stdout}{done.stderr}")


class TypesTest(unittest.TestCase):
    def test_mypy(self) -> None:
        tool("mypy", "--exclude", "|".join(WITHOUT_TORCH), *FILES)

    def test_pyright(self) -> None:
        # basedpyright is pyright with Node.js in its package; "standard" are the rules of pyright.
        config = {
            "include": FILES,
            "exclude": ["**" + folder for folder in WITHOUT_TORCH],
            "extraPaths": [str(PACKAGE), str(TESTS)],
            "pythonVersion": "3.10",
            "typeCheckingMode": "standard",
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(config, file)
            file.flush()
            tool("basedpyright", "--project", file.name, "--pythonpath", sys.executable)

    def test_ruff(self) -> None:
        tool("ruff", "check", "python", "examples", "bench")
        tool("ruff", "format", "--check", "python", "examples", "bench")


if __name__ == "__main__":
    unittest.main()
