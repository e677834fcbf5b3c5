"""Scripts of MSCCL++'s language run unchanged; a folder of them is checked by a command."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from typing import Any

import banyan

BUILD = Path(os.environ.get("BANYAN_BUILD", Path(__file__).resolve().parents[2] / "build"))

SOUND = """
    import argparse
    from mscclpp.language.channel import *
    from mscclpp.language.rank import *
    from mscclpp.language.general import *
    from mscclpp.language.program import *
    from mscclpp.language.collectives import *

    parser = argparse.ArgumentParser()
    parser.add_argument("--name", type=str)
    parser.add_argument("--num_gpus", type=int)
    args = parser.parse_args()
    n = args.num_gpus
    with CollectiveProgram(args.name, AllGather(n, 1, True), n, protocol="Simple"):
        for rank in range(n):
            for peer in range(n):
                if peer == rank:
                    continue
                channel = MemoryChannel(peer, rank)
                channel.signal(tb=peer, relaxed=True)
                channel.wait(tb=peer, relaxed=True)
                mine = Rank(rank).get_output_buffer()[rank : rank + 1]
                channel.put(Rank(peer).get_output_buffer()[rank : rank + 1], mine, tb=peer)
                channel.signal(tb=peer, data_sync=SyncType.before)
                channel.wait(tb=peer, data_sync=SyncType.after)
        print("a line that is no plan {")
        print(JSON())
"""

#: Nobody waits for the put: the caller may read the output before.
UNSOUND = """
    from mscclpp.language.channel import *
    from mscclpp.language.rank import *
    from mscclpp.language.program import *
    from mscclpp.language.collectives import *
    from mscclpp.language.internal.types import BufferType
    from mscclpp.language.internal.globals import get_program

    with CollectiveProgram("unsound", SendRecv(2, 1, False), 2):
        for rank in range(2):
            mine = Rank(rank).get_input_buffer()[:]
            MemoryChannel(1 - rank, rank).put(
                Rank(1 - rank).get_output_buffer()[:], mine, tb=0)
        print(get_program().to_json())
"""

WRONG = """
    from mscclpp.language import program
    from mscclpp.language.rank import Rank
    from mscclpp.language.collectives import AllReduce

    with program.CollectiveProgram("wrong", AllReduce(2, 1, True), 2):
        Rank(2)
"""


class Compat(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "scripts"
        (self.folder / "deep").mkdir(parents=True)
        scripts = {"sound": SOUND, "unsound": UNSOUND, "deep/wrong": WRONG}
        for name, text in scripts.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(text))
        (self.folder / "other.py").write_text("raise SystemExit('no script of the language')")

    def call(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **env}
        environment.pop("BANYAN_PYTHON", None)
        return subprocess.run(words, capture_output=True, text=True, env=environment)

    def test_modules_are_registered(self) -> None:
        importlib.import_module("banyan.compat.mscclpp")
        for name in ("channel", "rank", "general", "program", "collectives", "loop",
                     "thread_block_group", "utils"):  # fmt: skip
            theirs: Any = importlib.import_module(f"mscclpp.language.{name}")
            self.assertIs(theirs, importlib.import_module(f"banyan.language.{name}"))
        language: Any = importlib.import_module("mscclpp.language")
        self.assertIs(language.AlgoSpec, importlib.import_module("banyan.language").AlgoSpec)

    def test_a_script_alone(self) -> None:
        words = [sys.executable, "-m", "banyan.compat.mscclpp"]
        script = str(self.folder / "sound.py")
        done = self.call(*words, script, "--name", "three", "--num_gpus", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = banyan.Plan.parse(done.stdout[done.stdout.index("{\n") + 2 :])
        self.assertEqual((plan.name, plan.ranks), ("three", 3))
        self.assertTrue(plan.check().is_sound)
        wrong = self.call(*words, str(self.folder / "deep/wrong.py"))
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("rank 2 is out of range", wrong.stderr)

    def test_an_installed_package_keeps_its_other_modules(self) -> None:
        package = self.folder / "installed/mscclpp"
        (package / "language").mkdir(parents=True)
        for name, text in {
            "__init__": "raise ImportError('no CUDA')",
            "language/__init__": "raise ImportError('the real one')",
            "algos": "from mscclpp.language.collectives import AllGather as Collective",
        }.items():
            (package / f"{name}.py").write_text(text)
        script = "import banyan.compat.mscclpp, mscclpp.algos; print(mscclpp.algos.Collective)"
        path = f"{package.parent}:{os.environ.get('PYTHONPATH', '')}"
        done = self.call(sys.executable, "-c", script, PYTHONPATH=path)
        self.assertEqual(done.stdout.strip(), "<class 'banyan.language.collectives.AllGather'>")

    def test_a_folder(self) -> None:
        out = self.folder.parent / "plans"
        words = [sys.executable, "-m", "banyan.compat", "mscclpp", str(self.folder)]
        done = self.call(*words, "--set", "num_gpus=3", "--out", str(out))
        self.assertEqual(done.returncode, 1, done.stderr)
        lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
        self.assertEqual(set(lines), {"deep/wrong.py", "sound.py", "unsound.py", "3 scripts"})
        self.assertRegex(lines["deep/wrong.py"], "no plan: .*rank 2 is out of range")
        self.assertRegex(lines["sound.py"], "^3 ranks, 60 operations: sound$")
        self.assertRegex(
            lines["unsound.py"], r"not sound: [2-9] findings, first \w+ at unsound.py:12"
        )
        self.assertEqual(lines["3 scripts"], "2 make a plan, 1 a sound one")
        self.assertEqual({path.name for path in out.iterdir()}, {"sound.json", "unsound.json"})
        self.assertEqual(banyan.Plan.read(out / "sound.json").name, "sound")
        report = json.loads(self.call(*words, "--json").stdout)
        self.assertEqual([entry["sound"] for entry in report], [False, True, False])
        self.assertEqual(report[1]["plans"][0]["ranks"], 4)

    def test_wrong_calls(self) -> None:
        words = [sys.executable, "-m", "banyan.compat"]
        for arguments, code, text in [
            (["mscclpp", "/none"], 2, "/none does not exist"),
            (["mscclpp", str(self.folder), "--set", "x"], 2, "OPTION=VALUE"),
            (["mscclpp", str(self.folder / "deep"), "--timeout", "0.001"], 1, "more than 0.001 s"),
            (["other"], 2, "usage: banyan compat"),
            (["--help"], 0, "usage: banyan compat"),
        ]:
            done = self.call(*words, *arguments)
            self.assertEqual(done.returncode, code, done)
            self.assertIn(text, done.stdout + done.stderr)

    def test_the_command_line_hands_over(self) -> None:
        path = self.folder.parent / "bin"
        path.mkdir()
        (path / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (path / "python3").chmod(0o755)
        command = [str(BUILD / "bin/banyan"), "compat", "mscclpp"]
        done = self.call(*command, str(self.folder / "sound.py"), "--size", "4K", PATH=str(path))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("4 ranks", done.stdout)
        done = self.call(*command, str(self.folder), "--json", "--set=num_gpus=2", PATH=str(path))
        self.assertEqual(json.loads(done.stdout)[1]["plans"][0]["ranks"], 2)

    def test_the_command_line_says_what_is_missing(self) -> None:
        command = [str(BUILD / "bin/banyan"), "compat", "mscclpp", str(self.folder)]
        done = self.call(*command, PATH=str(self.folder))
        self.assertEqual(done.returncode, 2)
        self.assertIn("cannot start python3: No such file", done.stderr)
        empty = self.folder / "python3"
        empty.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
        empty.chmod(0o755)
        done = self.call(*command, PATH=str(self.folder))
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "package banyan is not installed for .*; pip install it")


if __name__ == "__main__":
    unittest.main()
