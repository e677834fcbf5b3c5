"""Entry points load in every process of other systems: quickly, and without errors."""

from __future__ import annotations

import subprocess
import sys
import unittest

#: What pyproject.toml names, and modules that loading it must not import.
POINT = "banyan.integrations.vllm:register"
HEAVY = ("torch", "vllm", "numpy")


class PluginsTest(unittest.TestCase):
    def test_vllm_plugin_is_light_and_does_nothing_without_vllm(self) -> None:
        script = f"""
import sys
from importlib.metadata import EntryPoint
# As if vLLM were not installed.
sys.modules["vllm"] = None
register = EntryPoint("banyan", {POINT!r}, "vllm.general_plugins").load()
assert register() is None
assert register() is None
found = [name for name in {HEAVY!r} if sys.modules.get(name) is not None]
assert not found, found
import banyan.integrations.vllm as package
try:
    package.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
