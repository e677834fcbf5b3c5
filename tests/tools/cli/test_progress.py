"""Long commands show their progress on a terminal; elsewhere they print one line, if it is asked for."""

import os
import pathlib
import pty
import re
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from collective_case import BANYAN, CollectiveCase

# As a terminal sees it: each line over the one before, and at the end none.
CLEARED = b"\r\033[K"


class Progress(CollectiveCase):
    def start(self, *words):
        master, terminal = pty.openpty()
        self.addCleanup(os.close, master)
        started = subprocess.Popen([BANYAN, *map(str, words)], stdout=subprocess.PIPE, stderr=terminal)
        os.close(terminal)
        return started, master

    def read(self, master, until=None):
        """Read until the end, or until a match is found."""
        seen, end = b"", time.monotonic() + 60
        try:
            while time.monotonic() < end and not (until and re.search(until, seen)) and (
                    part := os.read(master, 4096)):
                seen += part
        except OSError:
            pass
        return seen

    def assert_shows(self, what, *words):
        """It may be long until the end: that is not waited for."""
        bar = rb"\[#*\.*\] +\d+ %  ".join(what)
        started, master = self.start(*words)
        seen = self.read(master, bar)
        started.terminate()
        started.communicate(timeout=30)
        self.assertRegex(seen, bar)

    def test_a_terminal_shows_the_current_work(self):
        self.assert_shows([rb"tuning +", rb"\w+ of \d+ bytes, \w+ memory"],
                          "tune", "-n", 2, "--size", "8:1K", "-o", self.folder / "tuning.json")
        self.assert_shows([rb"probing +", rb"signals"], "topo", "probe", "-n", 2)
        self.assert_shows([rb"measuring +", rb"2 rows"], "mixed", "--local-tp", 2, "--rows", "1:2", "--max-bytes", "1K")
        self.assert_shows([rb"simulating +", rb"1.00 KiB"], "simulate", "-a", "allgather_direct", "-t", "h200x4")

    def test_the_line_is_taken_away_before_others_are_printed(self):
        words = ["simulate", "-a", "allgather_direct", "-t", "h200x4", "--size", "1K:4K"]
        started, master = self.start(*words)
        seen = self.read(master)
        printed, _ = started.communicate(timeout=30)
        self.assertEqual(printed.decode(), self.succeed(*words))
        self.assertEqual(seen.count(b"simulating"), 4)
        self.assertEqual(seen.count(CLEARED), 4)
        self.assertTrue(seen.endswith(CLEARED))
        self.assertNotIn(b"\n", seen)

    def test_progress_is_logged_once_without_a_terminal(self):
        words = ["simulate", "-a", "allgather_direct", "-t", "h200x4"]
        for level, logged in [("warn", ""), ("info", "banyan: info: simulating\n"),
                            ("debug", "banyan: info: simulating\n")]:
            done = self.banyan(*words, env=dict(os.environ, BANYAN_LOG=level))
            self.assertEqual((done.returncode, done.stderr), (0, logged))


if __name__ == "__main__":
    done = unittest.main(argv=[sys.argv[0], "-v"], exit=False)
    sys.exit(not done.result.wasSuccessful())
