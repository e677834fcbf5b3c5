"""The command line from Python, and the table of docs/python.md that says which call does what."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
import unittest
from pathlib import Path

import banyan

PAGE = (Path(__file__).resolve().parents[2] / "docs/python.md").read_text()
#: Commands that have commands.
GROUPS = {"algo", "compat", "layout", "plan", "reshard", "rules", "topo", "world"}
ROWS = re.findall(r"^\| (.*?) \| (.*) \|$", PAGE.partition("| command | Python |")[2], re.MULTILINE)


def listed(help_text: str) -> list[str]:
    """Return the commands that a help text lists."""
    return re.findall(r"^  ([a-z-]+)(?: [^a-z ].*?)?  +", help_text, re.MULTILINE)


class CommandTest(unittest.TestCase):
    def test_every_command_has_a_row(self) -> None:
        rows = " ".join(command for command, _ in ROWS)
        commands = listed(banyan.command("help"))
        self.assertGreater(len(commands), 14)
        for command in commands:
            self.assertIn(f"`banyan {command}", rows)
            text = banyan.command("help", command)
            parts = listed(text) if f"banyan {command} help COMMAND" in text else []
            self.assertEqual(bool(parts), command in GROUPS, command)
            for part in parts:
                row = rf"`banyan {command}[^|]*[` ]{part}[` ]"
                self.assertRegex(" | ".join(c for c, _ in ROWS), row)

    def test_every_call_of_the_table_exists(self) -> None:
        calls = " ".join(call for _, call in ROWS)
        names = re.findall(
            r"(?<![\w.\"])((?:banyan\.)?[A-Z]\w+(?:\.[a-z_]+)?|banyan(?:\.\w+)+)", calls
        )
        names = [name for name in names if not name.isupper() and not name.startswith("None")]
        self.assertGreater(len(names), 60)
        importlib.import_module("banyan.compat.mscclpp")
        for name in set(names):
            found: object = banyan
            for part in name.removeprefix("banyan.").split("."):
                if part in ("True", "False", "S", "T", "M", "B", "FILE", "DIR", "CASE"):
                    break
                self.assertTrue(hasattr(found, part), name)
                found = getattr(found, part)

    def test_learning_needs_the_engine(self) -> None:
        for name in ("torch", "vllm"):
            if importlib.util.find_spec(name) is None:
                break
        else:
            self.skipTest("vLLM is installed")
        with self.assertRaisesRegex(banyan.Error, f"layout learn: No module named '{name}'"):
            banyan.command("layout", "learn", "--engine", "vllm", "--model", "none")

    def test_python_starts_the_command(self) -> None:
        for words in (["-m", "banyan"], ["-c", "from banyan.__main__ import main; main()"]):
            done = subprocess.run(
                [sys.executable, *words, "topo", "list"], capture_output=True, text=True
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout, banyan.command("topo", "list"))
        wrong = subprocess.run([sys.executable, "-m", "banyan", "none"], capture_output=True)
        self.assertEqual(wrong.returncode, 2)

    def test_errors(self) -> None:
        with self.assertRaisesRegex(banyan.Error, "no command.*none|none.*no command"):
            banyan.command("none")
        with self.assertRaisesRegex(banyan.Error, "h300"):
            banyan.command("topo", "show", "h300")

    def test_ranks(self) -> None:
        script = """
import sys, banyan
with banyan.World() as world:
    sys.stdout.write(f"rank {world.rank} of {world.size}\\n")
"""
        printed = banyan.command("launch", "-n", 3, "--", sys.executable, "-c", script)
        self.assertEqual(sorted(printed.split("\n")), ["", *(f"rank {r} of 3" for r in range(3))])


if __name__ == "__main__":
    unittest.main()
