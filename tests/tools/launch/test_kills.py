"""Kill each process of a launched job in turn, at random times: no process, file or name is left."""

import atexit
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import safetensors
import small_model

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"
SEED = int(os.environ.get("TEST_SEED", time.time_ns() % 1000000))
ROUNDS = int(os.environ.get("TEST_ROUNDS", 6))
AT_ONCE = 20


def parent_of(pid):
    """The parent's number, or None when the process has ended."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


class Job:
    """A command whose processes are distinguished from all others by a variable of their environment."""

    count = 0

    def __init__(self, *arguments):
        Job.count += 1
        self.mark = f"BANYAN_TEST_MARK={os.getpid()}.{Job.count}"
        name, value = self.mark.split("=")
        self.command = subprocess.Popen(
            [BANYAN, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env={**os.environ, name: value})
        # Whatever a failing test has left.
        atexit.register(lambda: [os.kill(pid, signal.SIGKILL) for pid in self.processes()])

    def processes(self):
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                pass
        return found

    def own(self):
        """The launcher, its helpers and its ranks, in the order in which they were started."""
        return sorted(pid for pid in self.processes()
                      if self.command.pid in (pid, parent_of(pid)))

    def end(self):
        """The exit code, what was said, and which processes are left."""
        _, said = self.command.communicate(timeout=AT_ONCE)
        until = time.monotonic() + AT_ONCE
        while self.processes() and time.monotonic() < until:
            time.sleep(0.01)
        return self.command.returncode, said, self.processes()


class Kills(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(SEED)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def kill(self, job, which):
        """Kill the process of this number, or the last; return its place among them, and its id."""
        own = job.own()
        while not own and job.command.poll() is None:  # it is still starting
            own = job.own()
        if not own:
            return None, None
        place = min(which, len(own) - 1)
        try:
            os.kill(own[place], signal.SIGKILL)
        except ProcessLookupError:
            return None, None
        return place, own[place]

    def check_end(self, job, place, victim, who):
        code, said, left = job.end()
        self.assertEqual(left, [], said)
        if place is None:
            return code
        if victim == job.command.pid:
            self.assertIn(code, (0, -signal.SIGKILL))  # 0: it had just ended
        elif code != 0:
            self.assertGreater(code, 0, said)
            self.assertIn(who, said)
        return code

    def test_a_helper_that_is_killed_ends_the_job_with_a_message(self):
        job = Job("launch", "-n", "3", "--", "sh", "-c", "sleep 300 & sleep 300")
        while len(job.own()) < 5:
            time.sleep(0.01)
        self.assertNotEqual(job.own()[1], job.command.pid)
        os.kill(job.own()[1], signal.SIGKILL)
        code, said, left = job.end()
        self.assertEqual((code, left), (1, []), said)
        self.assertRegex(said, r"^banyan launch: the helper .*\(process \d+\) was killed by signal 9 "
                               r"\(Killed\); ending the 3 ranks\n$")

    def test_launched_jobs_leave_nothing(self):
        for which in range(5):
            for _ in range(ROUNDS):
                job = Job("launch", "-n", "3", "--", "sh", "-c", "sleep 300 & sleep 300")
                time.sleep(self.random.uniform(0, 0.05))
                place, victim = self.kill(job, which)
                self.assertIsNotNone(place)
                self.assertNotEqual(self.check_end(job, place, victim, "banyan launch: "), 0)

    def reshard(self, *more):
        draw = random.Random(1)
        tensors = {name: (tensor["dtype"], tensor["shape"],
                          draw.randbytes(math.prod(tensor["shape"]) *
                                         safetensors.BYTES[tensor["dtype"]]))
                   for name, tensor in small_model.dense().items()}
        source = self.folder / "in"
        safetensors.write_folder(source, tensors, 3)
        arguments = ["reshard", "--in", source, "--from", "tp=2", "--to", "tp=2", *more]
        began = time.monotonic()
        whole = Job(*arguments, "--out", self.folder / "whole")
        self.assertEqual(whole.command.wait(timeout=60), 0)
        takes = time.monotonic() - began
        self.assertEqual(whole.end()[0], 0)
        done = ended = 0
        for which in range(5):
            for i in range(ROUNDS):
                out = self.folder / f"out {which} {i}"
                job = Job(*arguments, "--out", out)
                time.sleep(self.random.uniform(0, 0.8 * takes))
                place, victim = self.kill(job, which)
                code = self.check_end(job, place, victim, "banyan reshard: ")
                hidden = sorted(path.name for path in self.folder.glob(".*"))
                self.assertEqual(hidden, [], f"process {place} was killed, round {i}")
                if code == 0:
                    self.assertTrue(out.exists())
                done += out.exists()
                ended += not out.exists()
        print(f"{done} were done before, {ended} ended, {takes:.2f} s each", file=sys.stderr)
        self.assertGreater(ended, 0)

    def test_a_joined_model_leaves_no_folder(self):
        self.reshard("--join")

    def test_a_saved_model_leaves_no_folder(self):
        self.reshard()


if __name__ == "__main__":
    print(f"TEST_SEED={SEED}", file=sys.stderr)
    unittest.main(verbosity=2)
