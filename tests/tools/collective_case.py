"""Base of the tests of run, algo and tune: a folder, the commands, and plans to change."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"


class CollectiveCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def banyan(self, *words, timeout=300, **options):
        return subprocess.run([BANYAN, *map(str, words)], capture_output=True, text=True,
                              timeout=timeout, **options)

    def succeed(self, *words, **options):
        done = self.banyan(*words, **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout

    def assert_refused(self, done, who, part, code=1):
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertRegex(done.stderr, f"^{who}: .*\n$")
        self.assertIn(part, done.stderr)

    def plan(self, algorithm, ranks, *options):
        return json.loads(self.succeed("algo", "emit", algorithm, "-n", ranks, *options))

    def write(self, plan, name="plan.json"):
        path = self.folder / name
        path.write_text(json.dumps(plan))
        return path

    def emit(self, algorithm, ranks, *options):
        return self.write(self.plan(algorithm, ranks, *options), f"{algorithm}.json")
